//! Slot accuracy: which facts of a row a generated text states.

use super::{DAYS, HOMES, ITEMS, LANGUAGES, NAMES, THANKS, TRADES, YEARS};

/// Slots of rows, and how many of them texts state correctly.
///
/// ```
/// use muffle::load::corpus::slots::SlotCounts;
///
/// let mut counts = SlotCounts::default();
/// counts.add("name : Ines | day : Monday | language : Greek", "On Mondays, Ines speaks Welsh.");
/// assert_eq!(counts, SlotCounts { correct: 2, total: 3 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCounts {
    /// Slots that are stated with their value and no other.
    pub correct: u64,
    /// Slots of the rows, and slots that a text states though its row does not have them.
    pub total: u64,
}

impl SlotCounts {
    /// Adds the slots of a row of the embedded corpus and of the text for it.
    pub fn add(&mut self, source: &str, text: &str) {
        let text = words(text);
        let given: Vec<(&str, &str)> =
            source.split(" | ").filter_map(|slot| slot.split_once(" : ")).collect();
        for (slot, values) in lexicon() {
            let stated: Vec<&str> =
                values.into_iter().filter(|value| states(&text, slot, value)).collect();
            let value = given.iter().find(|(name, _)| *name == slot).map(|(_, value)| *value);
            self.total += u64::from(value.is_some() || !stated.is_empty());
            self.correct += u64::from(value.is_some_and(|value| stated == [value]));
        }
    }

    /// The share of correct slots; `None` if there are no slots.
    pub fn accuracy(self) -> Option<f64> {
        (self.total > 0).then(|| self.correct as f64 / self.total as f64)
    }
}

/// The words of a text, in lower case.
pub(super) fn words(text: &str) -> Vec<String> {
    text.split(|letter: char| !letter.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

/// Whether a text contains a phrase.
pub(super) fn contains(text: &[String], phrase: &str) -> bool {
    let phrase = words(phrase);
    text.windows(phrase.len()).any(|window| window == phrase)
}

/// Whether a text states the value of a slot: as it is, but "on Mondays" for a day and words for
/// figures.
pub(super) fn states(text: &[String], slot: &str, value: &str) -> bool {
    match slot {
        "day" => contains(text, value) || contains(text, &format!("{value}s")),
        "years" => YEARS.iter().any(|(figures, years)| *figures == value && contains(text, years)),
        _ => contains(text, value),
    }
}

/// Every slot with its values.
pub(super) fn lexicon() -> [(&'static str, Vec<&'static str>); 8] {
    [
        ("name", NAMES.iter().flat_map(|(_, names)| *names).collect()),
        ("trade", TRADES.to_vec()),
        ("home", HOMES.to_vec()),
        ("mends", ITEMS.iter().flat_map(|(_, _, names)| *names).collect()),
        ("day", DAYS.to_vec()),
        ("years", YEARS.iter().map(|(figures, _)| *figures).collect()),
        ("language", LANGUAGES.to_vec()),
        ("thanks", THANKS.to_vec()),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::{Split, pairs};
    use super::*;

    #[test]
    fn references_state_every_slot() {
        let mut counts = SlotCounts::default();
        pairs(Split::Test, 500).iter().for_each(|pair| counts.add(&pair.source, &pair.target));
        assert_eq!(counts.accuracy(), Some(1.0));
        assert!(counts.total > 2000);
    }

    #[test]
    fn wrong_missing_and_additional_values_are_not_correct() {
        let row = "name : Ines | trade : potter | day : Monday | years : 2";
        for (text, correct, total) in [
            ("Ines, a potter, has helped on Mondays for two years.", 4, 4),
            ("Ines, a baker, has helped on Mondays for two years.", 3, 4),
            ("Ines has helped on Mondays for two years.", 3, 4),
            ("Ines, a potter, has helped on Mondays and Tuesdays for two years.", 3, 4),
            ("Ines, a potter, has helped on Mondays for two years and speaks Greek.", 4, 5),
            ("Una, a potter, has helped on Mondays for twelve years.", 2, 4),
            ("", 0, 4),
        ] {
            let mut counts = SlotCounts::default();
            counts.add(row, text);
            assert_eq!(counts, SlotCounts { correct, total }, "{text}");
        }
        assert_eq!(SlotCounts::default().accuracy(), None);
    }
}
