//! A small synthetic table-to-text corpus about volunteers of a repair workshop, from a grammar.
//!
//! A pair is a row of a table and one or two sentences that state all of its facts and no others.
//! The persons and the facts are fictitious.
//!
//! The grammar works in three steps: it draws the facts, draws a sentence plan and a voice, and
//! puts the facts into words. A fact is removed from the row when it is stated, so that none is
//! stated twice; the remaining facts go into the last sentence. One voice chooses the words of all
//! slots, so that most of the variation comes from the plan.
//!
//! The randomness is public: splitmix64 (Steele, Lea, Flood, *Fast splittable pseudorandom number
//! generators*, OOPSLA 2014) in counter mode. It must not be used for noise or lots.

pub mod slots;

use crate::Error;
use crate::load::data::Split;
use text::Tokenizer;

/// A source and its target text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorpusPair {
    /// The row, such as `name : Ines | trade : watchmaker | day : Saturday`.
    ///
    /// It has three to seven slots, always in the same order.
    pub source: String,
    /// The row in words.
    pub target: String,
}

/// Generates the first `count` pairs of a split. Pair i does not depend on `count`.
///
/// No source is in two splits.
pub fn pairs(split: Split, count: usize) -> Vec<CorpusPair> {
    (0..count).map(|index| pair(split, index)).collect()
}

/// Trains a tokenizer on the public part of the embedded corpus.
pub(super) fn tokenizer() -> Result<Tokenizer, Error> {
    let texts: Vec<String> = pairs(Split::Validation, 4000)
        .into_iter()
        .map(|pair| format!("{}\n{}", pair.source, pair.target))
        .collect();
    Ok(Tokenizer::train(texts.iter().map(String::as_str), 1024, &["<bos>", "<eos>"])?)
}

fn pair(split: Split, index: usize) -> CorpusPair {
    let mut draws = Draws::new(split, index);
    loop {
        let facts = Facts::draw(draws.slots(), &mut draws);
        let source = facts.source();
        if split_of(&source) == split {
            let plans: Vec<SentencePlan> =
                PLANS.into_iter().filter(|plan| plan.fits(&facts)).collect();
            return CorpusPair {
                source,
                target: target(facts, draws.one_of(&plans), draws.one_of(&VOICES)),
            };
        }
    }
}

/// The split of a source, by its FNV-1a hash: 5 % validation, 5 % test.
fn split_of(source: &str) -> Split {
    let hash = source.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    match mix(hash) % 20 {
        0 => Split::Validation,
        1 => Split::Test,
        _ => Split::Train,
    }
}

/// The random draws of one pair.
///
/// Draw k is `mix(key + k·φ)` with the increment φ of splitmix64. The key depends on split and
/// index.
struct Draws(u64);

/// The finaliser of splitmix64, a bijection.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Draws {
    fn new(split: Split, index: usize) -> Draws {
        Draws(mix(mix(split as u64 + 1).wrapping_add(index as u64)))
    }

    /// Draws an integer from 0 to `bound` − 1.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mix(self.0)) * bound as u128) >> 64) as usize
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// Draws the slots of a row besides the name: their number from [`SIZES`], then which.
    fn slots(&mut self) -> [bool; SLOTS] {
        let mut wanted = self.one_of(&SIZES);
        std::array::from_fn(|slot| {
            let taken = self.below(SLOTS - slot) < wanted;
            wanted -= usize::from(taken);
            taken
        })
    }
}

/// Number of slots besides the name.
const SLOTS: usize = 7;
/// The distribution of the number of these slots in a row.
const SIZES: [usize; 7] = [2, 3, 4, 4, 5, 5, 6];

/// One row. A fact is `None` if it is not in the row or has been stated.
#[derive(Debug, Clone, Copy)]
struct Facts {
    name: &'static str,
    pronoun: Pronoun,
    trade: Option<&'static str>,
    home: Option<&'static str>,
    mends: Option<Item>,
    day: Option<&'static str>,
    /// The number of years, in figures and in words.
    years: Option<(&'static str, &'static str)>,
    language: Option<&'static str>,
    thanks: Option<&'static str>,
}

impl Facts {
    fn draw(slots: [bool; SLOTS], draws: &mut Draws) -> Facts {
        let [trade, home, mends, day, years, language, thanks] = slots;
        let (pronoun, names) = draws.one_of(&NAMES);
        Facts {
            name: draws.one_of(&names),
            pronoun,
            trade: trade.then(|| draws.one_of(&TRADES)),
            home: home.then(|| draws.one_of(&HOMES)),
            mends: mends.then(|| Item::draw(draws)),
            day: day.then(|| draws.one_of(&DAYS)),
            years: years.then(|| draws.one_of(&YEARS)),
            language: language.then(|| draws.one_of(&LANGUAGES)),
            thanks: thanks.then(|| draws.one_of(&THANKS)),
        }
    }

    fn source(&self) -> String {
        let values = [
            ("name", Some(self.name)),
            ("trade", self.trade),
            ("home", self.home),
            ("mends", self.mends.map(|item| item.name)),
            ("day", self.day),
            ("years", self.years.map(|years| years.0)),
            ("language", self.language),
            ("thanks", self.thanks),
        ];
        let slots = values
            .iter()
            .filter_map(|(slot, value)| value.map(|value| format!("{slot} : {value}")));
        slots.collect::<Vec<_>>().join(" | ")
    }

    /// "potter from Larkham"; a volunteer if there is no trade.
    fn noun_phrase(&mut self) -> String {
        let home = self.home.take().map(|home| format!(" from {home}"));
        self.trade.take().unwrap_or("volunteer").to_string() + &home.unwrap_or_default()
    }

    /// The apposition of a name: "a potter from Larkham" or "who lives in Larkham".
    fn apposition(&mut self, voice: Voice) -> Option<String> {
        match self.trade {
            Some(_) => Some(with_article(&self.noun_phrase())),
            None => self
                .home
                .take()
                .map(|home| choose_forms(&format!("who {}", voice.say(HOME, home)), One)),
        }
    }

    /// "Ines, a potter from Larkham," or just "Ines".
    fn name_and_apposition(&mut self, voice: Voice) -> String {
        let name = self.name;
        self.apposition(voice)
            .map_or(name.to_string(), |apposition| format!("{name}, {apposition},"))
    }

    /// The phrase before a name: "a potter from Larkham", "a potter by trade" or "based in
    /// Larkham".
    fn opener(&mut self) -> String {
        match (self.trade, self.home) {
            (Some(_), Some(_)) => with_article(&self.noun_phrase()),
            (_, None) => with_article(&self.noun_phrase()) + " by trade",
            (None, Some(_)) => {
                self.home.take().map_or(String::new(), |home| format!("based in {home}"))
            }
        }
    }

    /// " on Mondays".
    fn when(&mut self, voice: Voice) -> String {
        self.day.take().map_or(String::new(), |day| format!(" {}", voice.say(DAY, day)))
    }

    /// "mends/mend toys at the workshop on Mondays": the item, the day and, where they go together,
    /// the years.
    fn work(&mut self, plan: SentencePlan, voice: Voice) -> Option<String> {
        let ([present, past, ing], object) = match (self.mends.take(), self.day) {
            (Some(item), None) if plan == SentencePlan::Fronted => {
                (item.verb(voice), item.name.to_string())
            }
            (Some(item), _) => (item.verb(voice), voice.say(PLACE, item.name)),
            (None, Some(_)) => ([HELP, LEND, BE][voice as usize], "at the workshop".to_string()),
            (None, None) => return None,
        };
        let when = self.when(voice);
        if plan == SentencePlan::Fronted {
            return Some(format!("{present} {object}"));
        }
        let years = self.years.take_if(|_| voice != Voice::Brisk);
        Some(match (years, voice) {
            (None, _) => format!("{present} {object}{when}"),
            (Some((_, years)), Voice::Warm) => {
                format!("has/have been {ing} {object}{when} for {years} now")
            }
            (Some((_, years)), _) => format!("has/have {past} {object}{when} for {years}"),
        })
    }

    /// Predicates for all facts that have not been stated.
    fn remaining_predicates(&mut self, plan: SentencePlan, voice: Voice) -> Vec<String> {
        let work = self.work(plan, voice);
        let trade = self.trade.map(|_| match self.home {
            Some(_) => format!("is/are {}", with_article(&self.noun_phrase())),
            None => voice.say(TRADE, &with_article(&self.noun_phrase())),
        });
        let home = self.home.take().map(|home| voice.say(HOME, home));
        let years = self.years.take().map(|(_, years)| voice.say(TIME, years));
        let language = self.language.take().map(|language| voice.say(LANGUAGE, language));
        let thanks = self.thanks.take().map(|thanks| voice.say(REWARD, thanks));
        [work, trade, home, years, language, thanks].into_iter().flatten().collect()
    }
}

/// The order of the facts and the structure of the sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SentencePlan {
    /// Ines is a potter who mends toys.
    Relative,
    /// Ines is a Greek-speaking potter who mends toys.
    Speaker,
    /// Ines, a potter, mends toys.
    Apposition,
    /// A potter from Larkham, Ines mends toys.
    Opener,
    /// Ines mends toys. She is a potter.
    Work,
    /// On Mondays, Ines mends toys.
    Fronted,
    /// Toys are mended by Ines, a potter.
    Passive,
    /// In return for tea, Ines mends toys.
    Bargain,
}

const PLANS: [SentencePlan; 8] = [
    SentencePlan::Relative,
    SentencePlan::Speaker,
    SentencePlan::Apposition,
    SentencePlan::Opener,
    SentencePlan::Work,
    SentencePlan::Fronted,
    SentencePlan::Passive,
    SentencePlan::Bargain,
];

impl SentencePlan {
    /// Whether a row has the facts that the plan states.
    fn fits(self, facts: &Facts) -> bool {
        let works = facts.mends.is_some() || facts.day.is_some();
        let identity = facts.trade.is_some() || facts.home.is_some();
        let other =
            works || facts.years.is_some() || facts.language.is_some() || facts.thanks.is_some();
        match self {
            SentencePlan::Relative => true,
            SentencePlan::Speaker => facts.language.is_some(),
            SentencePlan::Apposition | SentencePlan::Opener => identity && other,
            SentencePlan::Work | SentencePlan::Fronted => works,
            SentencePlan::Passive => facts.mends.is_some(),
            SentencePlan::Bargain => facts.mends.is_some() && facts.thanks.is_some(),
        }
    }
}

/// The choice of words for all slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Voice {
    Plain,
    Warm,
    Brisk,
}

const VOICES: [Voice; 3] = [Voice::Plain, Voice::Warm, Voice::Brisk];

impl Voice {
    /// Puts a value into this voice's wording.
    fn say(self, wordings: [&str; 3], value: &str) -> String {
        wordings[self as usize].replace('*', value)
    }
}

// The wordings of each slot, by voice: `*` is the value, `one/many` are the forms of a verb.
const TRADE: [&str; 3] = ["is/are *", "works/work as *", "is/are * by trade"];
const HOME: [&str; 3] = ["comes/come from *", "lives/live in *", "is/are based in *"];
const PLACE: [&str; 3] = ["* at the workshop", "*", "*"];
const DAY: [&str; 3] = ["on *s", "every *", "each *"];
const TIME: [&str; 3] = [
    "has/have been part of the team for *",
    "has/have been with us for * now",
    "has/have * of experience",
];
const LANGUAGE: [&str; 3] = ["speaks/speak *", "is/are happy to chat in *", "is/are fluent in *"];
const REWARD: [&str; 3] =
    ["takes/take * as thanks", "asks/ask only for * in return", "is/are paid in *"];
const BARGAIN: [&str; 3] = ["in return for *", "in exchange for *", "paid in *"];

/// Puts a row into words. The plan must fit the row.
fn target(mut facts: Facts, plan: SentencePlan, voice: Voice) -> String {
    let (name, (subject, number)) = (facts.name, facts.pronoun);
    // Up to `limit` predicates complete the first sentence after the link. If there are more than
    // `limit`, at most one does, and the others go into a second sentence.
    let (opening, link, limit) = match plan {
        SentencePlan::Relative => {
            (format!("{name} is {}", with_article(&facts.noun_phrase())), " who ", 2)
        }
        SentencePlan::Speaker => {
            let speaking = facts
                .language
                .take()
                .map_or(String::new(), |language| format!("{language}-speaking "));
            (format!("{name} is {}", with_article(&(speaking + &facts.noun_phrase()))), " who ", 2)
        }
        SentencePlan::Apposition => (facts.name_and_apposition(voice), " ", 1),
        SentencePlan::Opener => (format!("{}, {name}", facts.opener()), " ", 2),
        SentencePlan::Work => (name.to_string(), " ", 1),
        SentencePlan::Fronted => {
            let front = facts.day.map_or("at the workshop".to_string(), |day| voice.say(DAY, day));
            (format!("{front}, {}", facts.name_and_apposition(voice)), " ", 1)
        }
        SentencePlan::Passive => {
            let work = facts.mends.take().map_or(String::new(), |item| item.passive(voice));
            let opening = format!("{work}{} by {name}", facts.when(voice));
            match facts.apposition(voice) {
                Some(apposition) => (format!("{opening}, {apposition}"), "", 0),
                None => (opening, ", who ", 2),
            }
        }
        SentencePlan::Bargain => (
            format!("{}, {name}", voice.say(BARGAIN, facts.thanks.take().unwrap_or_default())),
            " ",
            1,
        ),
    };
    let mut first = facts.remaining_predicates(plan, voice);
    let second = first.split_off(if first.len() <= limit { first.len() } else { limit.min(1) });
    let mut text = capitalised(&opening);
    if !first.is_empty() {
        text = text + link + &choose_forms(&join_list(&first), One);
    }
    if !second.is_empty() {
        text = format!("{text}. {subject} {}", choose_forms(&join_list(&second), number));
    }
    text + "."
}

/// The grammatical number that a verb agrees with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    One,
    Many,
}
use Number::{Many, One};

/// Chooses among the forms `one/many`.
fn choose_forms(text: &str, number: Number) -> String {
    let words = text.split(' ').map(|word| match (word.split_once('/'), number) {
        (None, _) => word,
        (Some((one, _)), One) => one,
        (Some((_, many)), Many) => many,
    });
    words.collect::<Vec<_>>().join(" ")
}

/// "a", "a and b", "a, b and c".
fn join_list(items: &[String]) -> String {
    match items.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => items.concat(),
    }
}

/// "an engineer", but "a Ukrainian-speaking engineer".
fn with_article(phrase: &str) -> String {
    let vowel = phrase.starts_with(['a', 'e', 'i', 'o', 'u', 'A', 'E', 'I', 'O', 'U'])
        && !phrase.starts_with("Uk");
    format!("{} {phrase}", if vowel { "an" } else { "a" })
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// The pronoun at the start of a sentence, and the number of its verb.
type Pronoun = (&'static str, Number);

/// "mends/mend", "mended", "mending".
type Verb = [&'static str; 3];

/// A repaired item, with its verbs.
#[derive(Debug, Clone, Copy)]
struct Item {
    name: &'static str,
    number: Number,
    verbs: [Verb; 2],
}

impl Item {
    fn draw(draws: &mut Draws) -> Item {
        let (number, verbs, names) = draws.one_of(&ITEMS);
        Item { name: draws.one_of(&names), number, verbs }
    }

    fn verb(self, voice: Voice) -> Verb {
        self.verbs[usize::from(voice == Voice::Brisk)]
    }

    fn passive(self, voice: Voice) -> String {
        let work = format!("{} is/are {}", self.name, self.verb(voice)[1]);
        voice.say(PLACE, &choose_forms(&work, self.number))
    }
}

const BE: Verb = ["is/are", "been", "being"];
const HELP: Verb = ["helps/help", "helped", "helping"];
const LEND: Verb = ["lends/lend a hand", "lent a hand", "lending a hand"];
const MEND: Verb = ["mends/mend", "mended", "mending"];
const REPAIR: Verb = ["repairs/repair", "repaired", "repairing"];
const FIX: Verb = ["fixes/fix", "fixed", "fixing"];
const PATCH: Verb = ["patches/patch", "patched", "patching"];
const DARN: Verb = ["darns/darn", "darned", "darning"];
const RESTORE: Verb = ["restores/restore", "restored", "restoring"];
const SHARPEN: Verb = ["sharpens/sharpen", "sharpened", "sharpening"];
const GRIND: Verb = ["grinds/grind", "ground", "grinding"];

#[rustfmt::skip]
const ITEMS: [(Number, [Verb; 2], [&str; 4]); 10] = [
    (Many, [REPAIR, FIX], ["bicycles", "cameras", "laptops", "phones"]),
    (Many, [FIX, REPAIR], ["kettles", "lamps", "old radios", "toasters"]),
    (Many, [MEND, FIX], ["dolls", "toys", "umbrellas", "zips"]),
    (Many, [PATCH, MEND], ["coats", "jeans", "sails", "tents"]),
    (Many, [DARN, MEND], ["gloves", "jumpers", "scarves", "socks"]),
    (Many, [RESTORE, REPAIR], ["chairs", "clocks", "mirrors", "picture frames"]),
    (Many, [REPAIR, RESTORE], ["accordions", "leather bags", "shoes", "violins"]),
    (Many, [SHARPEN, GRIND], ["axes", "chisels", "kitchen knives", "scissors"]),
    (One, [MEND, REPAIR], ["crockery", "jewellery", "knitwear", "lace"]),
    (One, [RESTORE, REPAIR], ["furniture", "leatherwork", "pottery", "silverware"]),
];
#[rustfmt::skip]
const TRADES: [&str; 22] = [
    "architect", "baker", "carpenter", "cobbler", "electrician", "engineer", "farmer", "gardener",
    "librarian", "nurse", "optician", "organ builder", "plumber", "potter", "printer", "sailor",
    "tailor", "teacher", "tram driver", "upholsterer", "watchmaker", "welder",
];
#[rustfmt::skip]
const HOMES: [&str; 18] = [
    "Alderby", "Coldmere", "Dunholt", "Elmstow", "Fernwick", "Greyford", "Ivyholt", "Kelbrook",
    "Larkham", "Marlwood", "Northey", "Oakstead", "Pennick", "Rushby", "Saltmarsh", "Thornley",
    "Westerlea", "Yarrowby",
];
const DAYS: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
#[rustfmt::skip]
const YEARS: [(&str, &str); 12] = [
    ("1", "one year"), ("2", "two years"), ("3", "three years"), ("4", "four years"),
    ("5", "five years"), ("6", "six years"), ("7", "seven years"), ("8", "eight years"),
    ("9", "nine years"), ("10", "ten years"), ("11", "eleven years"), ("12", "twelve years"),
];
#[rustfmt::skip]
const LANGUAGES: [&str; 16] = [
    "Arabic", "Danish", "Dutch", "Estonian", "French", "German", "Greek", "Hindi", "Italian",
    "Polish", "Spanish", "Swedish", "Turkish", "Ukrainian", "Urdu", "Welsh",
];
#[rustfmt::skip]
const THANKS: [&str; 16] = [
    "apple cake", "biscuits", "cheese", "chocolate", "coffee", "eggs", "fresh bread", "honey",
    "jam", "lemonade", "pears", "plums", "roses", "soup", "tea", "tulips",
];
/// Names by pronoun. All rows have the same probability.
#[rustfmt::skip]
const NAMES: [(Pronoun, [&str; 9]); 5] = [
    (("She", One), [
        "Amina", "Birgit", "Clara", "Greta", "Hanna", "Ines", "Leila", "Maya", "Nadia",
    ]),
    (("She", One), ["Odile", "Priya", "Ruth", "Sofia", "Thea", "Una", "Vera", "Wanda", "Yara"]),
    (("He", One), ["Anton", "Bruno", "Dario", "Hugo", "Idris", "Jonas", "Karim", "Luca", "Mateo"]),
    (("He", One), [
        "Nils", "Omar", "Oskar", "Pavel", "Rafael", "Stefan", "Tomas", "Viktor", "Yusuf",
    ]),
    (("They", Many), ["Alex", "Jules", "Kim", "Noor", "Quinn", "Robin", "Rowan", "Sasha", "Toni"]),
];

#[cfg(test)]
mod tests {
    use super::slots::{self, words};
    use super::*;
    use std::collections::HashSet;

    const TRAIN: usize = 20_000;
    const HELD_OUT: usize = 1_000;
    const PARTS: [(Split, usize); 3] =
        [(Split::Train, TRAIN), (Split::Validation, HELD_OUT), (Split::Test, HELD_OUT)];

    fn contains(target: &str, phrase: &str) -> bool {
        slots::contains(&words(target), phrase)
    }

    fn says(target: &str, slot: &str, value: &str) -> bool {
        slots::states(&words(target), slot, value)
    }

    /// Every value of every slot.
    fn lexicon() -> Vec<(&'static str, &'static str)> {
        let all = slots::lexicon().into_iter();
        all.flat_map(|(slot, values)| values.into_iter().map(move |value| (slot, value))).collect()
    }

    /// Whether the verbs of a sentence agree with its subject.
    fn agrees(sentence: &str) -> bool {
        let wordings = [TRADE, HOME, TIME, LANGUAGE, REWARD].concat().join(" ");
        let verbs = ITEMS
            .iter()
            .flat_map(|(_, verbs, _)| verbs.map(|verb| verb[0]))
            .chain([BE[0], HELP[0], LEND[0]]);
        let forms: Vec<(&str, &str)> = wordings
            .split(' ')
            .chain(verbs.flat_map(|verb| verb.split(' ')))
            .filter_map(|word| word.split_once('/'))
            .collect();
        let item = lexicon()
            .into_iter()
            .find(|(slot, value)| *slot == "mends" && sentence.to_lowercase().starts_with(value));
        let said = words(item.map_or(sentence, |(_, item)| &sentence[item.len()..]));
        let none = |words: &[String], forms: Vec<&str>| {
            !words.iter().any(|word| forms.contains(&word.as_str()))
        };
        let (one, many): (Vec<&str>, Vec<&str>) = forms.into_iter().unzip();
        match item {
            Some((_, item)) => {
                let number = ITEMS
                    .iter()
                    .find(|(_, _, names)| names.contains(&item))
                    .map(|(number, _, _)| *number);
                said[0] == choose_forms("is/are", number.unwrap()) && none(&said[1..], many)
            }
            None if sentence.starts_with("They ") => none(&said, one),
            None => none(&said, many),
        }
    }

    /// The fault in the form of a target, if there is one.
    fn fault(target: &str) -> Option<&'static str> {
        const AN: [&str; 10] = [
            "architect",
            "arabic",
            "electrician",
            "engineer",
            "estonian",
            "italian",
            "optician",
            "organ",
            "upholsterer",
            "urdu",
        ];
        let said = words(target);
        let sentences: Vec<&str> = target.split_terminator('.').collect();
        let article = |pair: &[String]| {
            (pair[0] == "a" || pair[0] == "an")
                && (pair[0] == "an") != AN.contains(&pair[1].as_str())
        };
        if target.contains("  ")
            || target.contains(" ,")
            || target.contains(" .")
            || target.contains(['*', '/'])
        {
            Some("spacing or a template left over")
        } else if !target.ends_with('.') || !(1..=2).contains(&sentences.len()) {
            Some("not one or two sentences")
        } else if !sentences
            .iter()
            .all(|sentence| sentence.trim_start().starts_with(char::is_uppercase))
        {
            Some("no capital")
        } else if said.windows(2).any(article) {
            Some("a for an, or an for a")
        } else if !sentences.iter().all(|sentence| agrees(sentence.trim_start())) {
            Some("verb and subject do not agree")
        } else if said.windows(2).any(|pair| pair[0] == pair[1]) {
            Some("a word twice")
        } else {
            None
        }
    }

    /// Rows with each choice of slots, three of each, in every style that fits.
    fn all_styles() -> Vec<(Facts, SentencePlan, Voice, String)> {
        let mut draws = Draws::new(Split::Train, 0);
        let mut all = Vec::new();
        for mask in 0..1_u32 << SLOTS {
            let slots = std::array::from_fn(|slot| mask >> slot & 1 == 1);
            if !(2..=6).contains(&mask.count_ones()) {
                continue;
            }
            for facts in std::iter::repeat_with(|| Facts::draw(slots, &mut draws))
                .take(3)
                .collect::<Vec<_>>()
            {
                for plan in PLANS.into_iter().filter(|plan| plan.fits(&facts)) {
                    all.extend(
                        VOICES.map(|voice| (facts, plan, voice, target(facts, plan, voice))),
                    );
                }
            }
        }
        all
    }

    #[test]
    fn every_style_states_the_row_and_nothing_else() {
        let lexicon = lexicon();
        for (facts, plan, voice, target) in all_styles() {
            let source = facts.source();
            let slots: Vec<&str> = source.split(" | ").collect();
            for (slot, value) in &lexicon {
                let expected = slots.contains(&format!("{slot} : {value}").as_str());
                assert_eq!(
                    says(&target, slot, value),
                    expected,
                    "{plan:?} {voice:?}: {slot} {value} in {target}"
                );
            }
        }
    }

    #[test]
    fn every_style_is_well_formed() {
        for (facts, plan, voice, target) in all_styles() {
            assert_eq!(fault(&target), None, "{plan:?} {voice:?} {}: {target}", facts.source());
            let (subject, _) = facts.pronoun;
            for other in ["She", "He", "They"].into_iter().filter(|other| *other != subject) {
                assert!(!contains(&target, other), "{other} in {target}");
            }
        }
    }

    #[test]
    fn the_checks_detect_faults() {
        for bad in [
            "Ines is an potter.",
            "Ines is a engineer.",
            "Ines is an Ukrainian-speaking potter.",
            "Ines  mends toys.",
            "Ines mends toys",
            "ines mends toys.",
            "Ines mends toys. she speaks Greek.",
            "Toys is mended by Ines.",
            "Lace are mended by Ines.",
            "Kim mends lace. They speaks Greek.",
            "Ines mends lace. She speak Greek.",
            "Ines who who mends toys.",
            "Ines takes * as thanks.",
        ] {
            assert!(fault(bad).is_some(), "{bad}");
        }
        assert_eq!(fault("Toys are mended by Kim, an engineer. They speak Greek."), None);
        assert!(
            !says("Ines is a teacher.", "thanks", "tea")
                && !says("Ines has two years of experience.", "years", "12")
        );
    }

    #[test]
    fn pairs_match_their_source() {
        for (part, count) in PARTS {
            for pair in pairs(part, count) {
                let slots: Vec<&str> = pair.source.split(" | ").collect();
                assert!((3..=7).contains(&slots.len()), "{}", pair.source);
                assert_eq!(fault(&pair.target), None, "{}", pair.target);
                for slot in slots {
                    let (slot, value) = slot.split_once(" : ").unwrap();
                    assert!(says(&pair.target, slot, value), "{slot} {value} in {}", pair.target);
                }
            }
        }
    }

    #[test]
    fn plans_and_voices_differ() {
        let facts = Facts::draw([true; SLOTS], &mut Draws::new(Split::Test, 0));
        let all: HashSet<String> = PLANS
            .into_iter()
            .flat_map(|plan| VOICES.map(|voice| target(facts, plan, voice)))
            .collect();
        assert_eq!(all.len(), PLANS.len() * VOICES.len());
    }

    #[test]
    fn most_of_the_freedom_is_in_the_plan() {
        let mut draws = Draws::new(Split::Validation, 0);
        let rows = 2_000;
        let bits = |_| {
            let slots = draws.slots();
            let facts = Facts::draw(slots, &mut draws);
            (PLANS.into_iter().filter(|plan| plan.fits(&facts)).count() as f64).log2()
        };
        let plan = (0..rows).map(bits).sum::<f64>() / f64::from(rows);
        assert!(plan > 1.3 * (VOICES.len() as f64).log2(), "{plan} bits");
    }

    #[test]
    fn splits_share_no_source() {
        let [train, validation, test] = PARTS.map(|(part, count)| {
            pairs(part, count).into_iter().map(|p| p.source).collect::<HashSet<_>>()
        });
        assert!(train.len() * 100 > TRAIN * 95, "{} distinct sources", train.len());
        assert!(validation.len() * 100 > HELD_OUT * 95 && test.len() * 100 > HELD_OUT * 95);
        for (sources, part) in
            [(&train, Split::Train), (&validation, Split::Validation), (&test, Split::Test)]
        {
            assert!(sources.iter().all(|source| split_of(source) == part), "{part:?}");
        }
        assert!(
            train.is_disjoint(&validation)
                && train.is_disjoint(&test)
                && validation.is_disjoint(&test)
        );
    }

    #[test]
    fn pairs_do_not_depend_on_the_count() {
        let many = pairs(Split::Train, 100);
        assert_eq!(pairs(Split::Train, 40), many[..40]);
        assert!(pairs(Split::Train, 0).is_empty());
        // Golden: the corpus is the same on every machine and in every version.
        assert_eq!(
            many[0].source,
            "name : Clara | trade : optician | home : Ivyholt | language : Polish"
        );
        assert_eq!(many[0].target, "An optician from Ivyholt, Clara speaks Polish.");
    }

    #[test]
    fn lengths_and_words_are_small() {
        let all = pairs(Split::Train, TRAIN);
        let mean = all.iter().map(|pair| pair.target.split(' ').count()).sum::<usize>() as f64
            / all.len() as f64;
        assert!((18.0..26.0).contains(&mean), "{mean} words a target");
        let longest = all
            .iter()
            .map(|pair| pair.source.split(' ').count() + pair.target.split(' ').count())
            .max()
            .unwrap();
        assert!(longest <= 70, "{longest} words in a pair");
        // As they are spelled: "on" and "On" are two.
        let texts = all.iter().flat_map(|pair| [pair.source.as_str(), pair.target.as_str()]);
        let vocabulary: HashSet<&str> =
            texts.flat_map(|text| text.split([' ', ',', '.', ':', '|'])).collect();
        assert!((300..600).contains(&vocabulary.len()), "{} words", vocabulary.len());
    }
}
