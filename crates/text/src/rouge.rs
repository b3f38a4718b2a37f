//! ROUGE-L (Lin 2004, §3.1), as computed by the Python package rouge_score.
//!
//! With L the length of the longest common subsequence, precision is L over the words of the
//! hypothesis, recall L over those of the reference, and F₁ their harmonic mean. Of several
//! references the one with the largest F₁ counts. The score of a corpus is the mean over its items.
//! (The package's own aggregator takes the median of bootstrap samples, which is close to the mean
//! but not reproducible.)

use crate::bleu::check_lengths;
use crate::error::{Error, Result};
use crate::stem::stem;

/// Whether words or their stems are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Words {
    /// Stems of words of more than three letters: `use_stemmer=True`.
    Stemmed,
    /// Words: `use_stemmer=False`.
    Plain,
}

/// A ROUGE score, from 0 to 1, or from 0 to 100 after [`Score::percent`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Score {
    /// The common share of the hypothesis.
    pub precision: f64,
    /// The common share of the reference.
    pub recall: f64,
    /// 2 · precision · recall / (precision + recall)
    pub f1: f64,
}

impl Score {
    /// The score in percent.
    pub fn percent(self) -> Self {
        self.times(100.0)
    }

    fn times(self, factor: f64) -> Self {
        Self {
            precision: factor * self.precision,
            recall: factor * self.recall,
            f1: factor * self.f1,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            precision: self.precision + other.precision,
            recall: self.recall + other.recall,
            f1: self.f1 + other.f1,
        }
    }
}

/// The mean score over the items of a corpus, added one by one or merged.
///
/// ```
/// use text::rouge::{Mean, Words};
///
/// let mut mean = Mean::default();
/// mean.add("the cat sat", &["the cat sat down"], Words::Plain)?;
/// assert_eq!((mean.score().precision, mean.score().recall), (1.0, 0.75));
/// # Ok::<(), text::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Mean {
    items: u64,
    sum: Score,
}

impl Mean {
    /// Adds a hypothesis with its references, of which items may have different numbers.
    pub fn add(
        &mut self,
        hypothesis: &str,
        references: &[impl AsRef<str>],
        words: Words,
    ) -> Result<()> {
        let item = self.items.saturating_add(1);
        let score =
            rouge_l(hypothesis, references, words).map_err(|_| Error::NoReference { item })?;
        self.merge(&Self { items: 1, sum: score });
        Ok(())
    }

    /// Adds the items of another part of the corpus.
    pub fn merge(&mut self, other: &Self) {
        self.items = self.items.saturating_add(other.items);
        self.sum = self.sum.plus(other.sum);
    }

    /// The number of items.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// The mean of all items so far, from 0 to 1; 0 without items.
    pub fn score(&self) -> Score {
        match self.items {
            0 => Score::default(),
            items => Score {
                precision: self.sum.precision / items as f64,
                recall: self.sum.recall / items as f64,
                f1: self.sum.f1 / items as f64,
            },
        }
    }
}

/// The mean over a corpus; `references[i]` are all references of `hypotheses[i]`.
pub fn corpus_rouge_l(
    hypotheses: &[impl AsRef<str>],
    references: &[Vec<impl AsRef<str>>],
    words: Words,
) -> Result<Score> {
    check_lengths(hypotheses.len(), references.len())?;
    let mut mean = Mean::default();
    for (hypothesis, references) in hypotheses.iter().zip(references) {
        mean.add(hypothesis.as_ref(), references, words)?;
    }
    Ok(mean.score())
}

/// The score against the reference with the largest F₁; of equal ones, the first.
pub fn rouge_l(hypothesis: &str, references: &[impl AsRef<str>], words: Words) -> Result<Score> {
    let hypothesis = tokens(hypothesis, words);
    let scores =
        references.iter().map(|reference| score(&hypothesis, &tokens(reference.as_ref(), words)));
    scores
        .reduce(|best, next| if next.f1 > best.f1 { next } else { best })
        .ok_or(Error::NoReference { item: 1 })
}

/// Lower-case words: runs of a to z and 0 to 9.
///
/// Every other character separates, so that *café* is *caf* and *don't* is *don* and *t*.
pub fn tokens(text: &str, words: Words) -> Vec<String> {
    let text: String = text.chars().flat_map(char::to_lowercase).collect();
    let runs =
        text.split(|c: char| !matches!(c, 'a'..='z' | '0'..='9')).filter(|run| !run.is_empty());
    let token = |run: &str| {
        if words == Words::Stemmed && run.len() > 3 { stem(run) } else { run.to_owned() }
    };
    runs.map(token).filter(|token| !token.is_empty()).collect()
}

fn score(hypothesis: &[String], reference: &[String]) -> Score {
    let common = longest_common(hypothesis, reference);
    if common == 0 {
        return Score::default();
    }
    let (precision, recall) =
        (common as f64 / hypothesis.len() as f64, common as f64 / reference.len() as f64);
    Score { precision, recall, f1: 2.0 * precision * recall / (precision + recall) }
}

/// The length of the longest common subsequence, by one row of the table in memory.
fn longest_common<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    let (long, short) = if a.len() < b.len() { (b, a) } else { (a, b) };
    let mut row = vec![0; short.len()];
    for x in long {
        // The table's entries to the upper left and to the left.
        let (mut diagonal, mut left) = (0, 0);
        for (y, entry) in short.iter().zip(&mut row) {
            let above = *entry;
            *entry = if x == y { diagonal + 1 } else { above.max(left) };
            (diagonal, left) = (above, *entry);
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_common_subsequences() {
        for (a, b, want) in [
            ("", "", 0),
            ("abc", "", 0),
            ("abcde", "ace", 3),
            ("police killed the gunman", "police kill the gunman", 22),
            ("xyz", "abc", 0),
        ] {
            assert_eq!(longest_common(a.as_bytes(), b.as_bytes()), want, "{a} {b}");
            assert_eq!(longest_common(b.as_bytes(), a.as_bytes()), want, "{b} {a}");
        }
    }

    #[test]
    fn tokens_are_ascii_runs() {
        assert_eq!(
            tokens("Café «don't» 1,000 \u{212a}ing \u{130}s", Words::Plain),
            ["caf", "don", "t", "1", "000", "king", "i", "s"]
        );
        assert_eq!(
            tokens("The prices were EXCEEDINGLY low", Words::Stemmed),
            ["the", "price", "were", "exceedingli", "low"]
        );
        assert!(tokens("…。", Words::Stemmed).is_empty());
    }

    #[test]
    fn the_reference_with_the_largest_f1_counts() {
        let score = rouge_l("a b c d", &["x", "a b", "a b c d e"], Words::Plain).unwrap();
        assert_eq!((score.precision, score.recall), (1.0, 0.8));
        let refused = rouge_l("a", &[] as &[&str], Words::Plain);
        assert!(matches!(refused, Err(Error::NoReference { item: 1 })));
    }
}
