//! The cells that are measured. peers/adapter.py has the same ones.

/// The first one of a kernel.
pub(crate) const FIRST: &str = "x = 0";
/// The warm cell.
pub(crate) const COUNT: &str = "x += 1";
/// Asks what the counting came to.
pub(crate) const ASK_COUNT: &str = "print(x)";
/// Asks how long the literal was.
pub(crate) const ASK_SIZE: &str = "print(len(data))";

/// Prints so many bytes, in lines of 100.
pub(crate) fn printing(bytes: usize) -> String {
    format!("print(('x' * 99 + '\\n') * {}, end='')", bytes / 100)
}

/// A cell that consists of a long literal.
pub(crate) fn loading(bytes: usize) -> String {
    format!("data = '{}'", literal(bytes))
}

/// Letters and digits that do not compress well, the same every time: ssh compresses for some peers.
fn literal(bytes: usize) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut state: u64 = 12345;
    let piece: String = (0..bytes.min(65521))
        .map(|_| {
            state = (state * 1_103_515_245 + 12345) % 2_147_483_648;
            char::from(ALPHABET[(state >> 16 & 63) as usize])
        })
        .collect();
    let mut text = piece.repeat(bytes / piece.len() + 1);
    text.truncate(bytes);
    text
}
