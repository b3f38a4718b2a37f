//! Tokenizers loaded from files, and trained ones.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use text::{SpecialTokens, Tokenizer};

/// A file of the shared data, if it exists.
fn shared(path: &str) -> Option<PathBuf> {
    let root = std::env::var_os("MUFFLE_DATA").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        PathBuf::from,
    );
    let path = root.join(path);
    if !path.exists() {
        eprintln!("SKIPPED: {} is not there", path.display());
    }
    path.exists().then_some(path)
}

const TEXTS: [&str; 5] = [
    "name : The Eagle | food : Japanese",
    "The Eagle is a Japanese place near the river .",
    "name : Blue Spice | food : Chinese",
    "Blue Spice serves Chinese food .",
    "The Eagle and Blue Spice serve food near the river .",
];

#[test]
fn a_trained_tokenizer_reproduces_every_text() {
    let many: Vec<&str> = TEXTS.iter().copied().cycle().take(100).collect();
    let tokenizer = Tokenizer::train(many.into_iter(), 400, &["<bos>", "<eos>"]).unwrap();
    assert!(tokenizer.vocab_size() <= 400 && tokenizer.vocab_size() > 260, "{tokenizer:?}");
    assert_eq!(
        (
            tokenizer.token_id("<bos>"),
            tokenizer.token_id("<eos>"),
            tokenizer.token_id("nonsense of this kind")
        ),
        (Some(0), Some(1), None)
    );
    for text in TEXTS.into_iter().chain(["", "ünï©ödé 😀\n\t\u{0}", "UPPER lower  two spaces "])
    {
        let tokens = tokenizer.encode(text, SpecialTokens::Omit).unwrap();
        assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
        assert!(tokens.len() <= text.len());
    }
    assert!(
        tokenizer.encode(TEXTS[4], SpecialTokens::Omit).unwrap().len() < 16,
        "words have become tokens"
    );
    // Training is deterministic, and a saved tokenizer loads unchanged.
    let path = std::env::temp_dir().join(format!("muffle-tokenizer-{}.json", std::process::id()));
    tokenizer.save(&path).unwrap();
    let again = Tokenizer::open(&path).unwrap();
    let other = Tokenizer::train(
        TEXTS.iter().copied().cycle().take(100).collect::<Vec<_>>().into_iter(),
        400,
        &["<bos>", "<eos>"],
    )
    .unwrap();
    for text in TEXTS {
        let tokens = tokenizer.encode(text, SpecialTokens::Omit).unwrap();
        assert_eq!(again.encode(text, SpecialTokens::Omit).unwrap(), tokens);
        assert_eq!(other.encode(text, SpecialTokens::Omit).unwrap(), tokens);
    }
    std::fs::remove_file(&path).unwrap();
    assert!(
        tokenizer
            .tokens_with_newline()
            .iter()
            .all(|&token| tokenizer.decode(&[token]).unwrap().contains('\n'))
    );
    assert!(!tokenizer.tokens_with_newline().is_empty());
    assert!(Tokenizer::train(TEXTS.into_iter(), 100, &[]).is_err());
}

#[test]
fn invalid_tokenizer_files_are_refused() {
    let dir = std::env::temp_dir().join(format!("muffle-no-tokenizer-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    assert!(Tokenizer::open(&dir).unwrap_err().to_string().contains("tokenizer.json"));
    for text in [
        "",
        "{}",
        "[]",
        "{\"model\": {\"type\": \"BPE\"}}",
        "\u{0}\u{1}",
        "{\"version\": \"1.0\", \"model\": null}",
    ] {
        std::fs::write(dir.join("tokenizer.json"), text).unwrap();
        let refused = Tokenizer::open(&dir).unwrap_err().to_string();
        assert!(refused.contains("not a tokenizer"), "{refused}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn gpt2_tokens_match_the_published_ids() {
    let Some(path) = shared("gpt2-tokenizer/tokenizer.json") else { return };
    let tokenizer = Tokenizer::open(&path).unwrap();
    assert_eq!(tokenizer.vocab_size(), 50257);
    assert_eq!(tokenizer.token_id("<|endoftext|>"), Some(50256));
    assert_eq!(tokenizer.encode("Hello world", SpecialTokens::Omit).unwrap(), [15496, 995]);
    assert_eq!(tokenizer.decode(&[15496, 995, 50256]).unwrap(), "Hello world");
    assert!(tokenizer.tokens_with_newline().contains(&198));
}

/// The library panics on these: on the first two when it reads, on the others when it encodes.
#[test]
fn damaged_files_are_refused_and_do_not_panic() {
    let folder = std::env::temp_dir().join(format!("muffle-damaged-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let model = r#""model":{"type":"WordLevel","vocab":{"a":0,"ab":1},"unk_token":"a"}"#;
    let open = |parts: &str| {
        let path = folder.join("tokenizer.json");
        std::fs::write(&path, format!("{{{parts}{model}}}")).unwrap();
        Tokenizer::open(&path)
    };
    assert!(open(r#""decoder":{"type":"\x"},"#).is_err());
    assert!(open(r#""decoder":[[[[}"#).is_err());
    let named = open(r#""version":"\u001b[2J","#).unwrap_err().to_string();
    assert!(named.contains("[2J") && !named.contains('\u{1b}'), "{named:?}");
    let template = concat!(
        r#""post_processor":{"type":"TemplateProcessing","#,
        r#""single":[{"SpecialToken":{"id":"?","type_id":0}}],"pair":[],"special_tokens":{}},"#,
    );
    let tokenizer = open(template).unwrap();
    assert!(
        tokenizer.encode("secret", SpecialTokens::Add).is_err()
            && tokenizer.encode("a", SpecialTokens::Omit).is_ok()
    );
    let tokenizer =
        open(r#""decoder":{"type":"Strip","content":"a","start":0,"stop":9},"#).unwrap();
    assert!(tokenizer.decode(&[0]).is_err() && tokenizer.tokens_with_newline().is_empty());
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A text can be cut where its tokens end, also if a character has several tokens.
#[test]
fn token_ends_are_ends_of_characters() {
    let tokenizer = Tokenizer::train(["a b"].into_iter(), 258, &["<bos>", "<eos>"]).unwrap();
    assert!(tokenizer.token_ends("").unwrap().is_empty());
    let text = "a é 中";
    let ends = tokenizer.token_ends(text).unwrap();
    assert_eq!(ends.len(), tokenizer.encode(text, SpecialTokens::Omit).unwrap().len());
    assert!(ends.is_sorted() && ends.last() == Some(&text.len()), "{ends:?}");
    assert!(ends.iter().all(|&end| text.is_char_boundary(end)), "{ends:?}");
}
