//! What secrets look like: the prefixes that services give their keys, and the words that stand before a secret.
//!
//! Those of the services are what their own pages tell of the keys' form; gitleaks and detect-secrets look for the same kinds.

use super::redact::Chars;

/// How the place behind a keyword is judged.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    /// At least so many of these characters, and all that follow.
    Token { least: usize, chars: Chars },
    /// The same, and what stands before is no part of a word.
    Word { least: usize, chars: Chars },
    /// A word of exactly so many of these characters behind the keyword.
    Exactly { length: usize, chars: Chars },
    /// Digits, the keyword, and exactly so many of these characters.
    Numbered { length: usize, chars: Chars },
    /// Three parts between dots, the first two of which are JSON in base64.
    Jwt,
    /// A PEM block, if it is that of a private key.
    Pem,
    /// `user:password@`.
    Url,
    /// The value of a header: a scheme and what belongs to it.
    Header,
    /// What follows is the secret, if it looks like one.
    Bearer,
    /// The name of a variable or field, then `=` or `:`, then a value that looks like a key.
    NamedKey,
    /// Likewise; a password has fewer characters, and more kinds of them.
    NamedPassword,
}

/// A keyword and what it tells.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    pub(super) keyword: &'static str,
    pub(super) label: &'static str,
    pub(super) shape: Shape,
    /// False for words that are written in any case.
    pub(super) is_exact: bool,
}

pub(super) fn alnum(b: u8) -> bool {
    b.is_ascii_alphanumeric()
}

pub(super) fn word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_' || b == b'-'
}

fn dotted(b: u8) -> bool {
    word(b) || b == b'.'
}

fn upper(b: u8) -> bool {
    b.is_ascii_uppercase() || b.is_ascii_digit()
}

fn hex(b: u8) -> bool {
    matches!(b, b'0'..=b'9' | b'a'..=b'f')
}

fn base64(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"+/=%".contains(&b)
}

fn path(b: u8) -> bool {
    word(b) || b == b'/'
}

const fn token(keyword: &'static str, label: &'static str, least: usize, chars: Chars) -> Rule {
    Rule { keyword, label, shape: Shape::Token { least, chars }, is_exact: true }
}

const fn a_word(keyword: &'static str, label: &'static str, least: usize, chars: Chars) -> Rule {
    Rule { keyword, label, shape: Shape::Word { least, chars }, is_exact: true }
}

const fn exactly(keyword: &'static str, label: &'static str, length: usize, chars: Chars) -> Rule {
    Rule { keyword, label, shape: Shape::Exactly { length, chars }, is_exact: true }
}

const fn shaped(keyword: &'static str, label: &'static str, shape: Shape) -> Rule {
    Rule { keyword, label, shape, is_exact: true }
}

const fn named(keyword: &'static str, label: &'static str, shape: Shape) -> Rule {
    Rule { keyword, label, shape, is_exact: false }
}

const AWS: &str = "aws access key";
const GITHUB: &str = "github token";
const GITLAB: &str = "gitlab token";
const SLACK: &str = "slack token";
const STRIPE: &str = "stripe key";
const AZURE: &str = "azure key";
const KEY: &str = "api key";
const SECRET: &str = "secret";
const PASSWORD: &str = "password";

/// All of them. Of two keywords at one place the longer one is judged.
pub(super) const RULES: &[Rule] = &[
    exactly("AKIA", AWS, 16, upper),
    exactly("ASIA", AWS, 16, upper),
    exactly("ABIA", AWS, 16, upper),
    exactly("ACCA", AWS, 16, upper),
    token("ghp_", GITHUB, 30, alnum),
    token("gho_", GITHUB, 30, alnum),
    token("ghu_", GITHUB, 30, alnum),
    token("ghs_", GITHUB, 30, alnum),
    token("ghr_", GITHUB, 30, alnum),
    token("github_pat_", GITHUB, 40, word),
    token("glpat-", GITLAB, 20, dotted),
    token("gldt-", GITLAB, 20, word),
    token("glrt-", GITLAB, 20, dotted),
    token("glptt-", GITLAB, 40, alnum),
    token("glcbt-", GITLAB, 20, word),
    token("xoxb-", SLACK, 10, word),
    token("xoxp-", SLACK, 10, word),
    token("xoxa-", SLACK, 10, word),
    token("xoxr-", SLACK, 10, word),
    token("xoxs-", SLACK, 10, word),
    token("xoxe-", SLACK, 10, word),
    token("xoxe.xox", SLACK, 10, word),
    token("xapp-", SLACK, 20, word),
    token("hooks.slack.com/services/", "slack webhook", 20, path),
    token("hooks.slack.com/workflows/", "slack webhook", 20, path),
    token("discord.com/api/webhooks/", "discord webhook", 20, path),
    token("discordapp.com/api/webhooks/", "discord webhook", 20, path),
    token("sk-ant-", "anthropic key", 20, word),
    a_word("sk-proj-", "openai key", 20, word),
    a_word("sk-svcacct-", "openai key", 20, word),
    a_word("sk-admin-", "openai key", 20, word),
    a_word("sk-or-v1-", "openrouter key", 20, alnum),
    a_word("sk-lf-", "langfuse key", 20, word),
    a_word("sk-", KEY, 32, alnum),
    token("sk_live_", STRIPE, 16, alnum),
    token("sk_test_", STRIPE, 16, alnum),
    token("rk_live_", STRIPE, 16, alnum),
    token("rk_test_", STRIPE, 16, alnum),
    a_word("whsec_", "webhook secret", 24, base64),
    token("AIza", "google key", 35, word),
    a_word("ya29.", "google token", 20, dotted),
    token("GOCSPX-", "google client secret", 28, word),
    a_word("npm_", "npm token", 36, alnum),
    token("pypi-", "pypi token", 50, word),
    token("rubygems_", "rubygems key", 48, hex),
    a_word("hf_", "hugging face token", 30, alnum),
    a_word("r8_", "replicate token", 32, alnum),
    a_word("gsk_", "groq key", 40, alnum),
    a_word("xai-", "xai key", 60, alnum),
    a_word("pplx-", "perplexity key", 40, alnum),
    a_word("nvapi-", "nvidia key", 40, word),
    a_word("tvly-", "tavily key", 24, word),
    token("lsv2_pt_", "langsmith key", 32, word),
    token("lsv2_sk_", "langsmith key", 32, word),
    a_word("SG.", "sendgrid key", 60, dotted),
    exactly("key-", "mailgun key", 32, hex),
    exactly("SK", "twilio key", 32, hex),
    token("dop_v1_", "digitalocean token", 40, hex),
    token("doo_v1_", "digitalocean token", 40, hex),
    token("dor_v1_", "digitalocean token", 40, hex),
    token("shpat_", "shopify token", 32, alnum),
    token("shpca_", "shopify token", 32, alnum),
    token("shppa_", "shopify token", 32, alnum),
    token("shpss_", "shopify token", 32, alnum),
    token("dckr_pat_", "docker token", 20, word),
    token("dckr_oat_", "docker token", 20, word),
    token("lin_api_", "linear key", 32, alnum),
    a_word("ntn_", "notion token", 40, alnum),
    a_word("hvs.", "vault token", 24, word),
    a_word("hvb.", "vault token", 24, word),
    token("PMAK-", "postman key", 24, word),
    exactly("dapi", "databricks token", 32, hex),
    token("dp.pt.", "doppler token", 40, alnum),
    token("AGE-SECRET-KEY-1", "age key", 50, upper),
    token("NRAK-", "new relic key", 27, upper),
    a_word("glc_", "grafana token", 32, base64),
    a_word("glsa_", "grafana token", 32, word),
    token("sq0atp-", "square token", 22, word),
    token("sq0csp-", "square secret", 40, word),
    token("ATATT3", "atlassian token", 50, |b| word(b) || b == b'='),
    token("ATCTT3", "atlassian token", 50, |b| word(b) || b == b'='),
    token("figd_", "figma token", 30, word),
    token("sbp_", "supabase token", 40, hex),
    token("sntrys_", "sentry token", 40, |b| base64(b) || b == b'_'),
    token("sntryu_", "sentry token", 40, hex),
    token("tskey-", "tailscale key", 20, word),
    token("ops_eyJ", "1password token", 100, base64),
    token("FwoGZXIvYXdzE", "aws session token", 40, base64),
    token("AccountKey=", AZURE, 40, base64),
    token("SharedAccessKey=", AZURE, 40, base64),
    a_word("sig=", "signed url", 40, base64),
    shaped(":AA", "telegram token", Shape::Numbered { length: 33, chars: word }),
    shaped("eyJ", "json web token", Shape::Jwt),
    shaped("-----BEGIN ", "private key", Shape::Pem),
    shaped("://", "url password", Shape::Url),
    named("authorization", "authorization", Shape::Header),
    named("bearer", "bearer token", Shape::Bearer),
    named("api_key", KEY, Shape::NamedKey),
    named("api-key", KEY, Shape::NamedKey),
    named("apikey", KEY, Shape::NamedKey),
    named("access_key", SECRET, Shape::NamedKey),
    named("access-key", SECRET, Shape::NamedKey),
    named("accesskey", SECRET, Shape::NamedKey),
    named("secret_key", SECRET, Shape::NamedKey),
    named("secret-key", SECRET, Shape::NamedKey),
    named("secretkey", SECRET, Shape::NamedKey),
    named("private_key", SECRET, Shape::NamedKey),
    named("private-key", SECRET, Shape::NamedKey),
    named("privatekey", SECRET, Shape::NamedKey),
    named("signing_key", SECRET, Shape::NamedKey),
    named("encryption_key", SECRET, Shape::NamedKey),
    named("auth_key", SECRET, Shape::NamedKey),
    named("master_key", SECRET, Shape::NamedKey),
    named("secret", SECRET, Shape::NamedKey),
    named("token", "token", Shape::NamedKey),
    named("credential", SECRET, Shape::NamedKey),
    named("credentials", SECRET, Shape::NamedKey),
    named("password", PASSWORD, Shape::NamedPassword),
    named("passwd", PASSWORD, Shape::NamedPassword),
    named("passphrase", PASSWORD, Shape::NamedPassword),
];
