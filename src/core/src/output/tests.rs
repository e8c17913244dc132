use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Keys of the right form that belong to nobody, put together here so that nobody finds them in the source.
fn fakes() -> Vec<(String, &'static str)> {
    let body = "q7Rk2ZtX9mB4vL8sW3nY6cD1fG5hJ0pA".repeat(4);
    let hex = "9f86d081884c7d659a2feaa0c55ad015";
    vec![
        (format!("AKIA{}", "Q7RK2ZTX9MB4VL8S"), "aws access key"),
        (format!("ghp_{}", &body[..36]), "github token"),
        (format!("github_pat_{}", &body[..82]), "github token"),
        (format!("glpat-{}", &body[..20]), "gitlab token"),
        (format!("xoxb-{}-{}", &"1234567890123"[..12], &body[..24]), "slack token"),
        (format!("https://hooks.slack.com/services/T0/B0/{}", &body[..24]), "slack webhook"),
        (format!("sk-ant-api03-{}", &body[..80]), "anthropic key"),
        (format!("sk-proj-{}", &body[..48]), "openai key"),
        (format!("sk-{}", &body[..48]), "api key"),
        (format!("sk_live_{}", &body[..24]), "stripe key"),
        (format!("AIza{}", &body[..35]), "google key"),
        (format!("npm_{}", &body[..36]), "npm token"),
        (format!("hf_{}", &body[..34]), "hugging face token"),
        (format!("SG.{}.{}", &body[..22], &body[..43]), "sendgrid key"),
        (format!("key-{hex}"), "mailgun key"),
        (format!("123456789:AA{}", &body[..33]), "telegram token"),
        (format!("eyJ{}.eyJ{}.{}", &body[..30], &body[..50], &body[..43]), "json web token"),
        (format!("Authorization: Basic {}", &body[..20]), "authorization"),
        (format!("'Authorization': 'Token {}'", &body[..20]), "authorization"),
        (format!("Bearer {}", &body[..20]), "bearer token"),
        (format!("AWS_SECRET_ACCESS_KEY={}", &body[..40]), "secret"),
        (format!("\"api_key\": \"{}\"", &body[..32]), "api key"),
        (format!("'DB_PASSWORD': '{}'", "Tr0ub4dor"), "password"),
        (format!("client_secret => \"{}\"", &body[..32]), "secret"),
        ("postgres://app:p4ss%40w@db:5432/x".to_owned(), "url password"),
        (
            format!("-----BEGIN RSA PRIVATE KEY-----\n{body}\n{body}=\n-----END RSA PRIVATE KEY-----"),
            "private key",
        ),
    ]
}

fn cleaned(text: &str) -> String {
    Cleaner::default().text(text).into_owned()
}

fn in_pieces(cleaner: &Cleaner, text: &str, sizes: &[usize]) -> String {
    let (mut stream, mut out, mut rest) = (cleaner.stream(), String::new(), text);
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let end = (*size.min(&rest.len())..=rest.len()).find(|at| rest.is_char_boundary(*at)).unwrap();
        out.push_str(&stream.push(&rest[..end]));
        rest = &rest[end..];
    }
    out + &stream.finish(false)
}

#[test]
fn what_looks_like_a_secret_is_redacted_wherever_it_stands() {
    for (secret, label) in fakes() {
        for (before, behind) in
            [("", ""), ("a ", " b"), ("x=\"", "\"\n"), ("\u{e9}\t", "\u{e9}"), ("line\\n", "\\n")]
        {
            let found = cleaned(&format!("{before}{secret}{behind}"));
            assert!(found.contains(&format!("[redacted: {label}]")), "{secret} in {found:?}");
            assert!(found.starts_with(before) && found.ends_with(behind), "{secret} in {found:?}");
            let middle = &secret[secret.len() / 2..secret.len() - 3];
            assert!(label == "url password" || !found.contains(middle), "{secret} in {found:?}");
        }
    }
    assert_eq!(
        cleaned("postgres://app:p4ss%40w@db:5432/x"),
        "postgres://app:[redacted: url password]@db:5432/x"
    );
}

#[test]
fn what_does_not_look_like_one_is_left_alone() {
    for text in [
        "https://example.com:8080/path?x=1@2 and git@github.com:a/b.git",
        "risk-based-assessment-of-things-2024 disk-usage-per-directory-in-megabytes",
        "token = tokenizer.next_token()\nmax_tokens: 4096\nnum_tokens=1234567890123456",
        "password: str = None, secret: Optional[bytes], api_key=os.environ['API_KEY']",
        "sha256:9f86d081884c7d659a2feaa0c55ad0159f86d081884c7d659a2feaa0c55ad015",
        "commit 9f86d081884c7d659a2feaa0c55ad0159f86d081 AKIA ghp_ sk- eyJ eyJhbGciOiJIUzI1NiJ9 -----BEGIN CERTIFICATE-----",
        "Authorization: see the page; bearer of good news; secrets of the 19th century",
        "550e8400-e29b-41d4-a716-446655440000 /usr/lib/python3.11/site-packages/secretstorage/__init__.py",
    ] {
        assert_eq!(cleaned(text), text);
        assert_eq!(in_pieces(&Cleaner::default(), text, &[3]), text);
    }
}

#[test]
fn a_secret_with_an_escape_in_it_is_found() {
    let (secret, _) = &fakes()[1];
    assert_eq!(cleaned(&format!("ghp_\x1b[1m{}\x1b[0m!", &secret[4..])), "[redacted: github token]!");
}

#[test]
fn registered_values_are_found_in_every_form_that_printing_gives_them() {
    let mut secrets = Secrets::new();
    assert!(secrets.add("DB", "correct horse@battery\nsecond line of it") && !secrets.add("X", "short"));
    let cleaner = Cleaner::new(&secrets);
    for text in [
        "correct horse@battery\nsecond line of it",
        "correct horse@battery\\nsecond line of it",
        "correct%20horse%40battery%0Asecond%20line%20of%20it",
        "second line of it",
    ] {
        assert_eq!(cleaner.text(&format!("<{text}>")), "<[redacted: DB]>", "{text}");
    }
    assert!(!format!("{secrets:?}{cleaner:?}").contains("horse"));
    let mut env = std::collections::BTreeMap::from([("GIT_AUTHOR_NAME".to_owned(), "Ann Smith".to_owned())]);
    env.insert("MY_TOKEN".to_owned(), "abcdefgh".to_owned());
    let mut learned = Secrets::new();
    learned.add_from(&env);
    assert_eq!(Cleaner::new(&learned).text("Ann Smith abcdefgh"), "Ann Smith [redacted: MY_TOKEN]");
}

#[test]
fn what_a_cut_leaves_of_a_secret_goes_too() {
    let (token, _) = &fakes()[1];
    let mark = "\n[\u{2026} 17 bytes omitted \u{2026}]\n";
    let text = format!("head {}{mark}{} tail", &token[..20], &token[25..]);
    assert_eq!(cleaned(&text), format!("head ghp_[redacted: github token]{mark}[redacted: cut off] tail"));
    let (key, _) = fakes().pop().unwrap();
    let text = format!("head {}{mark}{} tail", &key[..60], &key[80..]);
    assert_eq!(cleaned(&text), format!("head [redacted: private key]{mark}[redacted: private key] tail"));
    let mut secrets = Secrets::new();
    secrets.add("PIN", "swordfish and chips");
    let text = format!("head swordfis{mark} and chips tail");
    assert_eq!(Cleaner::new(&secrets).text(&text), format!("head [redacted: PIN]{mark}[redacted: PIN] tail"));
    // What was cut in the middle of a word is no secret for that.
    let text = format!("{}{mark}{}\n", "x".repeat(600), "x".repeat(600));
    assert_eq!(cleaned(&text), text);
    assert_eq!(cleaned(&format!("\x1b]0;a{mark}b\x1b[1m")), format!("{mark}b"));
}

#[test]
fn a_prompt_is_shown_and_what_is_typed_behind_it_is_not() {
    let mut stream = Cleaner::default().stream();
    assert_eq!(stream.push("Password: "), "");
    assert!(stream.can_let_go());
    assert_eq!(stream.let_go(), "Password: ");
    assert_eq!(stream.let_go(), "");
    assert_eq!(stream.push("Tr0ub"), "");
    assert_eq!(stream.let_go(), "");
    assert_eq!(stream.push("4dor\nnew."), "[redacted: password]\nnew.");
    assert_eq!(stream.finish(false), "");
}

#[test]
fn of_a_registered_value_no_more_than_its_beginning_is_let_go() {
    let mut secrets = Secrets::new();
    secrets.add("PIN", "swordfish and chips");
    let mut stream = Cleaner::new(&secrets).stream();
    let mut shown = String::new();
    for c in "a sword; a swordfish and chips.".chars() {
        shown.push_str(&stream.push(&c.to_string()));
        shown.push_str(&stream.let_go());
    }
    assert_eq!(shown + &stream.finish(false), "a sword; a sw[redacted: PIN].");
}

#[test]
fn images_are_left_alone_and_all_other_forms_are_not() {
    let (token, _) = &fakes()[1];
    let mut bundle = MimeBundle::from([
        ("image/png".to_owned(), json!(token)),
        ("image/svg+xml".to_owned(), json!(token)),
        ("application/json".to_owned(), json!({token: [1, {"a": token}]})),
    ]);
    Cleaner::default().bundle(&mut bundle);
    let told = "[redacted: github token]";
    assert_eq!(bundle["image/png"], json!(token));
    assert_eq!(bundle["image/svg+xml"], json!(told));
    assert_eq!(bundle["application/json"], json!({told: [1, {"a": told}]}));
}

#[test]
fn a_raw_cleaner_changes_nothing() {
    let text = format!("\x1b[1m{}", fakes()[1].0);
    assert_eq!(Cleaner::off().text(&text), text.as_str());
    assert_eq!(in_pieces(&Cleaner::off(), &text, &[2]), text);
}

/// Text in which much may be the beginning of something.
fn texts() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => prop::sample::select(fakes()).prop_map(|(secret, _)| secret),
        2 => (prop::sample::select(fakes()), any::<prop::sample::Index>()).prop_map(|((secret, _), at)| secret[..at.index(secret.len())].to_owned()),
        2 => (prop::sample::select(fakes()), any::<prop::sample::Index>()).prop_map(|((secret, _), at)| secret[at.index(secret.len())..].to_owned()),
        3 => prop::sample::select(rules::RULES).prop_map(|rule| rule.keyword.to_owned()),
        2 => prop::sample::select(vec!["swordfish", "sword", "fish and chips", "sswordfish and", "-----END RSA PRIVATE KEY-----", "-----END", "-----"]).prop_map(str::to_owned),
        3 => "[ \\n\"':=@\\\\/.-]{1,4}",
        2 => "\\PC{0,5}",
        2 => prop::sample::select(vec!["\x1b[1m", "\x1b]0;t\x07", "\x1b]", "\x1b", "\u{9d}x\u{9c}", "\r\n", "\x08"]).prop_map(str::to_owned),
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn a_text_is_cleaned_alike_however_it_is_cut(text in texts(), sizes in prop::collection::vec(1usize..40, 1..5)) {
        let mut secrets = Secrets::new();
        for value in ["swordfish", "swordfish and chips", "fish and ships"] {
            secrets.add("PIN", value);
        }
        let cleaner = Cleaner::new(&secrets);
        prop_assert_eq!(in_pieces(&cleaner, &text, &sizes), cleaner.text(&text));
    }

    #[test]
    fn letting_go_shows_nothing_twice_and_no_secret(text in texts(), sizes in prop::collection::vec(1usize..40, 1..5)) {
        let cleaner = Cleaner::default();
        let (mut stream, mut shown, mut rest) = (cleaner.stream(), String::new(), text.as_str());
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let end = (*size.min(&rest.len())..=rest.len()).find(|at| rest.is_char_boundary(*at)).unwrap();
            shown.push_str(&stream.push(&rest[..end]));
            shown.push_str(&stream.let_go());
            rest = &rest[end..];
        }
        shown.push_str(&stream.finish(false));
        // What was let go is the keyword of a secret, which stands before its redaction then.
        let all = cleaner.text(&text);
        prop_assert_eq!(shown.matches("[redacted: ").count(), all.matches("[redacted: ").count());
        let least = |text: &str| text.split('[').map(|part| part.rsplit(']').next().unwrap_or("").len()).sum::<usize>();
        prop_assert!(least(&shown) >= least(&all));
        prop_assert!(shown.len() <= text.len() + all.matches("[redacted: ").count() * 40);
    }
}

#[test]
fn arguments_are_copied_only_to_be_changed() {
    let cleaner = Cleaner::default();
    let plain: Arc<ToolArguments> =
        Arc::new([("query".to_owned(), Value::from("fish"))].into_iter().collect());
    let mut told = Arc::clone(&plain);
    cleaner.arguments(&mut told);
    assert!(Arc::ptr_eq(&plain, &told));
    let secret = format!("ghp_{}", "a1B2".repeat(9));
    for (name, value) in [(secret.as_str(), "x"), ("x", secret.as_str())] {
        let whole: Arc<ToolArguments> =
            Arc::new([(name.to_owned(), Value::from(value))].into_iter().collect());
        let mut told = Arc::clone(&whole);
        cleaner.arguments(&mut told);
        assert!(serde_json::to_string(&*told).unwrap().contains("[redacted: github token]"), "{told:?}");
        assert!(serde_json::to_string(&*whole).unwrap().contains(&secret), "the tool gets it as it is");
    }
}
