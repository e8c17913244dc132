#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farcell_fuzz::text(data));
