//! What is in the corpora stays right: seeds, and inputs that have found something.

use std::path::Path;

#[test]
fn all_of_the_corpora_is_decoded_as_it_should_be() {
    for (name, target) in farcell_fuzz::TARGETS {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        let inputs: Vec<_> = std::fs::read_dir(&corpus)
            .unwrap_or_else(|e| panic!("{}: {e}", corpus.display()))
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(!inputs.is_empty(), "the corpus of {name} is empty");
        for input in inputs {
            eprintln!("{}", input.display());
            target(&std::fs::read(&input).unwrap());
        }
    }
}
