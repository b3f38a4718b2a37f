//! BLEU of a corpus and of a sentence (Papineni, Roukos, Ward, Zhu 2002), as sacrebleu 2 computes
//! it by default (Post 2018): tokenizer 13a, case kept, n-grams up to four, exponential smoothing,
//! several references.
//!
//! BLEU = BP · exp(Σ_n ln p_n / N). p_n is the share of the hypotheses' n-grams that occur in a
//! reference, each counted at most as often as in the one reference that has most of it. BP =
//! min(1, exp(1 − r/c)), c the length of the hypotheses, r that of the references closest to them.
//! All of it is a function of ten sums, the [`Statistics`].
//!
//! Two things are refused here that sacrebleu lets pass or fails on: lists of different lengths,
//! which it cuts to the shorter, and an item without references.

use std::collections::HashMap;
use std::fmt;

/// The longest n-grams.
pub const ORDERS: usize = 4;

/// Why nothing was scored.
#[derive(Debug, Clone, PartialEq)]
pub enum Error {
    /// There is nothing to score.
    Empty,
    /// Hypotheses and lists of references are not as many.
    Lengths {
        /// How many hypotheses.
        hypotheses: usize,
        /// How many lists of references.
        references: usize,
    },
    /// An item has no reference, not even an empty one.
    NoReference {
        /// Which, counted from 1.
        item: u64,
    },
    /// A pseudo-count below 0, above 1, or no number.
    Pseudocount {
        /// What was given.
        got: f64,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => {
                write!(f, "expected at least one hypothesis with its references, got none")
            }
            Self::Lengths { hypotheses, references } => {
                write!(
                    f,
                    "expected as many hypotheses as lists of references, got {hypotheses} and \
                     {references}"
                )
            }
            Self::NoReference { item } => {
                write!(f, "expected at least one reference for item {item}, got none")
            }
            Self::Pseudocount { got } => {
                write!(f, "a pseudo-count must be between 0 and 1, got {got}")
            }
        }
    }
}

impl std::error::Error for Error {}

/// This module's and ROUGE's result.
pub type Result<T> = std::result::Result<T, Error>;

/// How a score is made of the statistics. The default is sacrebleu's for a corpus.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BleuOptions {
    /// What stands in for a precision of 0.
    pub smoothing: Smoothing,
    /// Over how many orders the mean goes.
    pub order: Order,
}

impl BleuOptions {
    /// What sacrebleu takes for single sentences.
    pub const SENTENCE: Self = Self { smoothing: Smoothing::Exponential, order: Order::Effective };
}

/// What stands in for a precision of 0 (Chen and Cherry 2014). Where nothing at all matches, the
/// score is 0 under each.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Smoothing {
    /// Nothing: the score is 0.
    None,
    /// The k-th precision of 0 becomes 2^−k over the number of n-grams, as in mteval-v13a. Method
    /// 3.
    #[default]
    Exponential,
    /// This in place of 0 matches. Method 1.
    Floor(Pseudocount),
    /// This more of the matches and of the n-grams, of every order but the first and whether or not
    /// there are matches. Method 2.
    AddK(Pseudocount),
}

/// A number of n-grams that were not seen, from 0 to 1: with more, no match could be worth more
/// than a match.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pseudocount(f64);

impl Pseudocount {
    /// sacrebleu's default for [`Smoothing::Floor`].
    pub const FLOOR: Self = Self(0.1);
    /// sacrebleu's default for [`Smoothing::AddK`].
    pub const ONE: Self = Self(1.0);

    /// Checks it.
    pub fn new(value: f64) -> Result<Self> {
        if (0.0..=1.0).contains(&value) {
            Ok(Self(value))
        } else {
            Err(Error::Pseudocount { got: value })
        }
    }
}

/// Over how many orders the mean of the logarithms goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// All four. Hypotheses without a single 4-gram score 0.
    #[default]
    Full,
    /// As many as the longest n-gram of the hypotheses, but four at most. It is found for the
    /// corpus as a whole, so that one sentence of four words is enough to make it four; and it asks
    /// whether there are n-grams, not whether they match.
    Effective,
}

/// A score and what it is made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bleu {
    /// 0 to 100
    pub score: f64,
    /// 100 p_n after smoothing. 0 from the first order that has no n-grams, and all of them where
    /// nothing matches.
    pub precisions: [f64; ORDERS],
    /// BP
    pub brevity_penalty: f64,
    /// c, in tokens
    pub hypothesis_length: u64,
    /// r, in tokens
    pub reference_length: u64,
}

/// What BLEU needs to know of a corpus. Add items one by one, merge those of several parts, and ask
/// for the score at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    items: u64,
    hypothesis_length: u64,
    reference_length: u64,
    matches: [u64; ORDERS],
    totals: [u64; ORDERS],
}

impl Statistics {
    /// One more hypothesis with its references, which may be more or fewer than another's. An empty
    /// reference counts: its length is 0.
    pub fn add(&mut self, hypothesis: &str, references: &[impl AsRef<str>]) -> Result<()> {
        let hypothesis = tokens(hypothesis);
        let references: Vec<_> =
            references.iter().map(|reference| tokens(reference.as_ref())).collect();
        // The closest length, of two the shorter.
        let closest = references
            .iter()
            .map(Vec::len)
            .min_by_key(|&length| (length.abs_diff(hypothesis.len()), length));
        let Some(reference_length) = closest else {
            return Err(Error::NoReference { item: self.items.saturating_add(1) });
        };

        let mut allowed: HashMap<&[String], u64> = HashMap::new();
        for reference in &references {
            for (ngram, count) in ngrams(reference) {
                let most = allowed.entry(ngram).or_default();
                *most = count.max(*most);
            }
        }
        let mut item = Self {
            items: 1,
            hypothesis_length: hypothesis.len() as u64,
            reference_length: reference_length as u64,
            ..Self::default()
        };
        for (ngram, count) in ngrams(&hypothesis) {
            let order = ngram.len() - 1;
            item.totals[order] += count;
            item.matches[order] += count.min(allowed.get(ngram).copied().unwrap_or(0));
        }
        self.merge(&item);
        Ok(())
    }

    /// The items of another part of the corpus.
    pub fn merge(&mut self, other: &Self) {
        let add = |a: &mut u64, b: u64| *a = a.saturating_add(b);
        add(&mut self.items, other.items);
        add(&mut self.hypothesis_length, other.hypothesis_length);
        add(&mut self.reference_length, other.reference_length);
        self.matches.iter_mut().zip(other.matches).for_each(|(a, b)| add(a, b));
        self.totals.iter_mut().zip(other.totals).for_each(|(a, b)| add(a, b));
    }

    /// How many items there are.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// The score of all items so far; 0 before the first.
    pub fn bleu(&self, options: BleuOptions) -> Bleu {
        let (c, r) = (self.hypothesis_length, self.reference_length);
        let brevity_penalty = match (c, r) {
            _ if c >= r => 1.0,
            (0, _) => 0.0,
            _ => (1.0 - r as f64 / c as f64).exp(),
        };
        let mut bleu = Bleu {
            score: 0.0,
            precisions: [0.0; ORDERS],
            brevity_penalty,
            hypothesis_length: c,
            reference_length: r,
        };
        if self.matches.iter().all(|&m| m == 0) {
            return bleu;
        }
        let (mut present, mut zeros) = (0, 0);
        for (n, (&matches, &total)) in self.matches.iter().zip(&self.totals).enumerate() {
            let (mut matches, mut total) = (matches as f64, total as f64);
            if let Smoothing::AddK(k) = options.smoothing
                && n > 0
            {
                (matches, total) = (matches + k.0, total + k.0);
            }
            if total == 0.0 {
                break;
            }
            present = n + 1;
            bleu.precisions[n] = match options.smoothing {
                _ if matches != 0.0 => 100.0 * matches / total,
                Smoothing::Exponential => {
                    zeros += 1;
                    100.0 / (f64::powi(2.0, zeros) * total)
                }
                Smoothing::Floor(k) => 100.0 * k.0 / total,
                Smoothing::None | Smoothing::AddK(_) => 0.0,
            };
        }
        let orders = match options.order {
            Order::Full => ORDERS,
            Order::Effective => present,
        };
        let logarithms: f64 = bleu.precisions.iter().take(orders).map(|p| p.ln()).sum();
        bleu.score = brevity_penalty * (logarithms / orders as f64).exp();
        bleu
    }
}

/// BLEU of a corpus: `references[i]` are all the references of `hypotheses[i]`.
pub fn corpus_bleu(
    hypotheses: &[impl AsRef<str>],
    references: &[Vec<impl AsRef<str>>],
    options: BleuOptions,
) -> Result<Bleu> {
    paired(hypotheses.len(), references.len())?;
    let mut statistics = Statistics::default();
    for (hypothesis, references) in hypotheses.iter().zip(references) {
        statistics.add(hypothesis.as_ref(), references)?;
    }
    Ok(statistics.bleu(options))
}

/// BLEU of one sentence, usually with [`BleuOptions::SENTENCE`].
pub fn sentence_bleu(
    hypothesis: &str,
    references: &[impl AsRef<str>],
    options: BleuOptions,
) -> Result<Bleu> {
    let mut statistics = Statistics::default();
    statistics.add(hypothesis, references)?;
    Ok(statistics.bleu(options))
}

/// The tokens of 13a: mteval-v13a's rules for Western languages, in sacrebleu's order. Entities are
/// resolved once; ASCII punctuation other than `'`, `-`, `.` and `,` stands alone; `.` and `,`
/// stand alone unless between digits; `-` stands alone after a digit. Nothing beyond ASCII is
/// punctuation.
pub fn tokens(text: &str) -> Vec<String> {
    let mut line = text.trim_end_matches(is_space).to_owned();
    for (from, to) in [
        ("<skipped>", ""),
        ("-\n", ""),
        ("\n", " "),
        ("&quot;", "\""),
        ("&amp;", "&"),
        ("&lt;", "<"),
        ("&gt;", ">"),
    ] {
        if line.contains(from) {
            line = line.replace(from, to);
        }
    }
    let mut spaced = vec![' '];
    for c in line.chars() {
        if matches!(c, ' '..='&' | '('..='+' | '/' | ':'..='@' | '['..='`' | '{'..='~') {
            spaced.extend([' ', c, ' '])
        } else {
            spaced.push(c)
        }
    }
    spaced.push(' ');

    let (digit, point) = (|c: char| c.is_ascii_digit(), |c: char| matches!(c, '.' | ','));
    let spaced = rewritten(&spaced, |a, b| (!digit(a) && point(b)).then_some([a, ' ', b, ' ']));
    let spaced = rewritten(&spaced, |a, b| (point(a) && !digit(b)).then_some([' ', a, ' ', b]));
    let spaced = rewritten(&spaced, |a, b| (digit(a) && b == '-').then_some([a, ' ', b, ' ']));
    spaced
        .split(|&c| is_space(c))
        .filter(|token| !token.is_empty())
        .map(|token| token.iter().collect())
        .collect()
}

/// Whether a corpus has items, and as many hypotheses as lists of references.
pub(crate) fn paired(hypotheses: usize, references: usize) -> Result<()> {
    match (hypotheses, references) {
        (0, 0) => Err(Error::Empty),
        _ if hypotheses != references => Err(Error::Lengths { hypotheses, references }),
        _ => Ok(()),
    }
}

/// What Python splits at: Unicode's white space and the four separators of ASCII.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// Every two neighbours replaced that the rule applies to, from the left and without overlap, as a
/// regular expression of two characters does.
fn rewritten(text: &[char], rule: impl Fn(char, char) -> Option<[char; 4]>) -> Vec<char> {
    let mut new = Vec::with_capacity(text.len() + 16);
    let mut rest = text;
    while let [a, tail @ ..] = rest {
        if let [b, after @ ..] = tail
            && let Some(four) = rule(*a, *b)
        {
            new.extend(four);
            rest = after;
        } else {
            new.push(*a);
            rest = tail;
        }
    }
    new
}

/// How often each n-gram of one to four tokens occurs.
fn ngrams(tokens: &[String]) -> HashMap<&[String], u64> {
    let mut counts = HashMap::new();
    for ngram in (1..=ORDERS).flat_map(|n| tokens.windows(n)) {
        *counts.entry(ngram).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_13a() {
        for (text, want) in [
            ("", ""),
            ("It's a pub, near the river.", "It's a pub , near the river ."),
            ("1,000.50 or 5.", "1,000.50 or 5 ."),
            (".5 ,x, 3.x", ". 5 , x , 3 . x"),
            ("10-20 family-friendly -5", "10 - 20 family-friendly -5"),
            ("a...b", "a . . . b"),
            ("R&amp;B &amp;lt; &quot;x&quot;", "R & B < \" x \""),
            ("foo-\nbar\nbaz-\n", "foobar baz-"),
            ("a<skipped>b", "ab"),
            ("£20–25 «é»… 。", "£20–25 «é»… 。"),
            ("a\u{1c}b\u{a0}c\u{3000}d\u{200b}e", "a b c d\u{200b}e"),
        ] {
            assert_eq!(tokens(text).join(" "), want, "{text:?}");
        }
    }

    #[test]
    fn the_closest_reference_gives_the_length_and_ties_go_to_the_shorter() {
        let length = |references: &[&str]| {
            sentence_bleu("a b c d", references, BleuOptions::default()).unwrap().reference_length
        };
        assert_eq!(length(&["a b c d e f", "a b", "a"]), 2);
        assert_eq!(length(&["a b c d e", "a b"]), 5);
        assert_eq!(length(&[""]), 0);
    }

    #[test]
    fn an_ngram_counts_as_often_as_in_one_reference() {
        // Papineni et al., example 2: 2/7 for the seven times "the".
        let bleu = sentence_bleu(
            "the the the the the the the",
            &["the cat is on the mat", "there is a cat on the mat"],
            BleuOptions::default(),
        );
        assert_eq!(bleu.unwrap().precisions[0], 200.0 / 7.0);
    }

    #[test]
    fn a_bad_pseudocount_is_refused() {
        for bad in [-1.0, 1.5, f64::NAN, f64::INFINITY] {
            assert!(Pseudocount::new(bad).is_err());
        }
        assert_eq!(Pseudocount::new(0.1), Ok(Pseudocount::FLOOR));
    }
}
