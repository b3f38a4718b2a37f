//! BLEU of corpora and sentences (Papineni, Roukos, Ward, Zhu 2002), as computed by sacrebleu 2.
//!
//! The defaults are those of sacrebleu (Post 2018): tokenizer 13a, case-sensitive, n-grams up to
//! four, exponential smoothing, several references.
//!
//! BLEU = BP · exp(Σ_n ln p_n / N). p_n is the share of the hypotheses' n-grams that occur in a
//! reference, each counted at most as often as in the reference that contains it most often. BP =
//! min(1, exp(1 − r/c)), c the length of the hypotheses, r that of the references closest to them.
//! BLEU is a function of ten sums, the [`Statistics`].
//!
//! Unlike sacrebleu, lists of different lengths, which it cuts to the shorter, and items without
//! references are refused.

use crate::error::{Error, Result};
use std::collections::HashMap;

/// Length of the longest n-grams.
pub const ORDERS: usize = 4;

/// Smoothing and order of BLEU. The default is sacrebleu's for a corpus.
///
/// ```
/// use text::bleu::{BleuOptions, sentence_bleu};
///
/// let same = sentence_bleu("a cat", &["a cat"], BleuOptions::SENTENCE)?;
/// assert!((same.score - 100.0).abs() < 1e-9);
/// # Ok::<(), text::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BleuOptions {
    /// The replacement of a precision of 0.
    pub smoothing: Smoothing,
    /// The number of orders in the mean.
    pub order: Order,
}

impl BleuOptions {
    /// sacrebleu's options for single sentences.
    pub const SENTENCE: Self = Self { smoothing: Smoothing::Exponential, order: Order::Effective };
}

/// The replacement of a precision of 0 (Chen and Cherry 2014).
///
/// If no n-gram matches, the score is 0 for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Smoothing {
    /// None: the score is 0.
    None,
    /// The k-th precision of 0 becomes 2^−k over the number of n-grams (method 3, mteval-v13a).
    #[default]
    Exponential,
    /// 0 matches are replaced by this number (method 1).
    Floor(Pseudocount),
    /// This number is added to matches and n-grams of every order but the first (method 2).
    AddK(Pseudocount),
}

/// A pseudo-count of n-grams, from 0 to 1.
///
/// With a larger one, no match could count more than a match.
///
/// ```
/// assert!(text::bleu::Pseudocount::new(0.5).is_ok());
/// assert!(text::bleu::Pseudocount::new(1.5).is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pseudocount(f64);

impl Pseudocount {
    /// sacrebleu's default for [`Smoothing::Floor`].
    pub const FLOOR: Self = Self(0.1);
    /// sacrebleu's default for [`Smoothing::AddK`].
    pub const ONE: Self = Self(1.0);

    /// Validates the value.
    pub fn new(value: f64) -> Result<Self> {
        if (0.0..=1.0).contains(&value) {
            Ok(Self(value))
        } else {
            Err(Error::Pseudocount { got: value })
        }
    }
}

/// The number of orders in the mean of the logarithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// All four. Hypotheses without any 4-gram score 0.
    #[default]
    Full,
    /// Up to the longest n-gram of the hypotheses, at most four.
    ///
    /// It is determined for the whole corpus, so that one sentence of four words makes it four; and
    /// by the n-grams present, not by those that match.
    Effective,
}

/// A BLEU score and its components.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bleu {
    /// From 0 to 100.
    pub score: f64,
    /// 100 p_n after smoothing.
    ///
    /// 0 from the first order without n-grams on, and all 0 if nothing matches.
    pub precisions: [f64; ORDERS],
    /// BP.
    pub brevity_penalty: f64,
    /// c, in tokens.
    pub hypothesis_length: u64,
    /// r, in tokens.
    pub reference_length: u64,
}

/// Sufficient statistics of BLEU for a corpus.
///
/// Items are added one by one; parts of a corpus are merged.
///
/// ```
/// use text::bleu::{BleuOptions, Statistics};
///
/// let mut corpus = Statistics::default();
/// corpus.add("the cat sat on the mat", &["the cat sat on the mat"])?;
/// assert!((corpus.bleu(BleuOptions::default()).score - 100.0).abs() < 1e-9);
/// # Ok::<(), text::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    items: u64,
    hypothesis_length: u64,
    reference_length: u64,
    matches: [u64; ORDERS],
    totals: [u64; ORDERS],
}

impl Statistics {
    /// Adds a hypothesis with its references, of which items may have different numbers.
    ///
    /// An empty reference counts: its length is 0.
    pub fn add(&mut self, hypothesis: &str, references: &[impl AsRef<str>]) -> Result<()> {
        let hypothesis = tokens(hypothesis);
        let references: Vec<_> =
            references.iter().map(|reference| tokens(reference.as_ref())).collect();
        // The closest length; of two equally close ones, the shorter.
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

    /// Adds the items of another part of the corpus.
    pub fn merge(&mut self, other: &Self) {
        let add = |a: &mut u64, b: u64| *a = a.saturating_add(b);
        add(&mut self.items, other.items);
        add(&mut self.hypothesis_length, other.hypothesis_length);
        add(&mut self.reference_length, other.reference_length);
        self.matches.iter_mut().zip(other.matches).for_each(|(a, b)| add(a, b));
        self.totals.iter_mut().zip(other.totals).for_each(|(a, b)| add(a, b));
    }

    /// The number of items.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// The score of all items so far; 0 without items.
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
    check_lengths(hypotheses.len(), references.len())?;
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

/// The tokens of the tokenizer 13a: mteval-v13a's rules for Western languages.
///
/// The rules are applied in sacrebleu's order. Entities are resolved once; ASCII punctuation other
/// than `'`, `-`, `.` and `,` is a token; `.` and `,` are tokens unless between digits; `-` is a
/// token after a digit. Only ASCII is punctuation.
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
    let spaced = replace_pairs(&spaced, |a, b| (!digit(a) && point(b)).then_some([a, ' ', b, ' ']));
    let spaced = replace_pairs(&spaced, |a, b| (point(a) && !digit(b)).then_some([' ', a, ' ', b]));
    let spaced = replace_pairs(&spaced, |a, b| (digit(a) && b == '-').then_some([a, ' ', b, ' ']));
    spaced
        .split(|&c| is_space(c))
        .filter(|token| !token.is_empty())
        .map(|token| token.iter().collect())
        .collect()
}

/// Checks that a corpus has items, and as many hypotheses as lists of references.
pub(crate) fn check_lengths(hypotheses: usize, references: usize) -> Result<()> {
    match (hypotheses, references) {
        (0, 0) => Err(Error::EmptyCorpus),
        _ if hypotheses != references => Err(Error::Lengths { hypotheses, references }),
        _ => Ok(()),
    }
}

/// Python's white space: Unicode's, and the four separators of ASCII.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// Replaces pairs of characters by a rule, from the left and without overlap.
fn replace_pairs(text: &[char], rule: impl Fn(char, char) -> Option<[char; 4]>) -> Vec<char> {
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
    fn reference_length_is_the_closest_and_ties_go_to_the_shorter() {
        let length = |references: &[&str]| {
            sentence_bleu("a b c d", references, BleuOptions::default()).unwrap().reference_length
        };
        assert_eq!(length(&["a b c d e f", "a b", "a"]), 2);
        assert_eq!(length(&["a b c d e", "a b"]), 5);
        assert_eq!(length(&[""]), 0);
    }

    #[test]
    fn ngram_counts_are_clipped_by_one_reference() {
        // Papineni et al., example 2: 2/7 for the seven times "the".
        let bleu = sentence_bleu(
            "the the the the the the the",
            &["the cat is on the mat", "there is a cat on the mat"],
            BleuOptions::default(),
        );
        assert_eq!(bleu.unwrap().precisions[0], 200.0 / 7.0);
    }

    #[test]
    fn invalid_pseudocounts_are_refused() {
        for bad in [-1.0, 1.5, f64::NAN, f64::INFINITY] {
            assert!(Pseudocount::new(bad).is_err());
        }
        assert_eq!(Pseudocount::new(0.1).unwrap(), Pseudocount::FLOOR);
    }
}
