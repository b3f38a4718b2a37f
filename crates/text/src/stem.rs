//! The Porter stemmer (Porter 1980) as in nltk's mode NLTK_EXTENSIONS, which rouge_score uses.
//!
//! A letter is a vowel if it is one of aeiou, or a y after a consonant; all other characters
//! are consonants. With runs of vowels V and of consonants C every word is `[C](VC)^m[V]`, and m is
//! its measure. A step applies the first rule whose suffix matches; if that rule's condition
//! fails, no other rule is tried.

/// The stem of a word, in lower case.
pub fn stem(word: &str) -> String {
    let short = word.chars().nth(2).is_none();
    let word = word.to_lowercase();
    if let Some((_, stem)) = IRREGULAR.iter().find(|(form, _)| *form == word) {
        return (*stem).to_owned();
    }
    if short {
        return word;
    }
    let word = plural(word);
    let word = past(word);
    let word = last_y(word);
    let word = double_suffix(word);
    let word = replaced(word, &STEP_3, |stem, _| measure(stem) > 0);
    let word = replaced(word, &STEP_4, |stem, suffix| {
        measure(stem) > 1 && (suffix != "ion" || stem.ends_with(['s', 't']))
    });
    last_l(last_e(word))
}

/// nltk's irregular forms, looked up before any step.
const IRREGULAR: [(&str, &str); 16] = [
    ("sky", "sky"),
    ("skies", "sky"),
    ("dying", "die"),
    ("lying", "lie"),
    ("tying", "tie"),
    ("news", "news"),
    ("inning", "inning"),
    ("innings", "inning"),
    ("outing", "outing"),
    ("outings", "outing"),
    ("canning", "canning"),
    ("cannings", "canning"),
    ("howe", "howe"),
    ("proceed", "proceed"),
    ("exceed", "exceed"),
    ("succeed", "succeed"),
];

/// Suffixes and their replacements, in nltk's order.
type Rules<const N: usize> = [(&'static str, &'static str); N];

const STEP_1A: Rules<4> = [("sses", "ss"), ("ies", "i"), ("ss", "ss"), ("s", "")];

const STEP_2: Rules<22> = [
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("fulli", "ful"),
    ("logi", "log"),
];

const STEP_3: Rules<7> = [
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ful", ""),
    ("ness", ""),
];

const STEP_4: Rules<19> = [
    ("al", ""),
    ("ance", ""),
    ("ence", ""),
    ("er", ""),
    ("ic", ""),
    ("able", ""),
    ("ible", ""),
    ("ant", ""),
    ("ement", ""),
    ("ment", ""),
    ("ent", ""),
    ("ion", ""),
    ("ou", ""),
    ("ism", ""),
    ("ate", ""),
    ("iti", ""),
    ("ous", ""),
    ("ive", ""),
    ("ize", ""),
];

/// Step 1a. In nltk dies → die, but flies → fli.
fn plural(word: String) -> String {
    match word.strip_suffix("ies") {
        Some(stem) if stem.chars().count() == 1 => format!("{stem}ie"),
        _ => replaced(word, &STEP_1A, |_, _| true),
    }
}

/// Step 1b. In nltk died → die, but spied → spi.
fn past(word: String) -> String {
    if let Some(stem) = word.strip_suffix("ied") {
        return format!("{stem}{}", if stem.chars().count() == 1 { "ie" } else { "i" });
    }
    if let Some(stem) = word.strip_suffix("eed") {
        return if measure(stem) > 0 { format!("{stem}ee") } else { word };
    }
    let Some(stem) = word.strip_suffix("ed").or_else(|| word.strip_suffix("ing")) else {
        return word;
    };
    if !consonants(stem).any(|consonant| !consonant) {
        return word;
    }
    let mut stem = stem.to_owned();
    if ["at", "bl", "iz"].iter().any(|end| stem.ends_with(end)) {
        stem.push('e');
    } else if ends_double(&stem) {
        if !stem.ends_with(['l', 's', 'z']) {
            stem.pop();
        }
    } else if measure(&stem) == 1 && ends_short(&stem) {
        stem.push('e');
    }
    stem
}

/// Step 1c. In nltk not after a vowel (enjoy → enjoy), nor after the first letter (by → by).
fn last_y(word: String) -> String {
    match word.strip_suffix('y') {
        Some(stem) if stem.chars().nth(1).is_some() && consonants(stem).last() == Some(true) => {
            format!("{stem}i")
        }
        _ => word,
    }
}

/// Step 2. In nltk alli → al is applied first.
fn double_suffix(word: String) -> String {
    let word = replaced(word, &[("alli", "al")], |stem, _| measure(stem) > 0);
    // The l of logi counts with the stem: geologi → geolog.
    replaced(word, &STEP_2, |stem, suffix| {
        measure(stem) > 0 || suffix == "logi" && measure(&format!("{stem}l")) > 0
    })
}

/// Step 5a.
fn last_e(word: String) -> String {
    match word.strip_suffix('e') {
        Some(stem) if measure(stem) > 1 || measure(stem) == 1 && !ends_short(stem) => {
            stem.to_owned()
        }
        _ => word,
    }
}

/// Step 5b.
fn last_l(mut word: String) -> String {
    if word.ends_with("ll") && measure(&word[..word.len() - 1]) > 1 {
        word.pop();
    }
    word
}

/// Applies the first rule whose suffix matches, if its condition holds.
fn replaced(word: String, rules: &[(&str, &str)], allowed: impl Fn(&str, &str) -> bool) -> String {
    let fitting = rules
        .iter()
        .find_map(|(suffix, new)| word.strip_suffix(suffix).map(|stem| (stem, suffix, new)));
    match fitting {
        Some((stem, suffix, new)) if allowed(stem, suffix) => format!("{stem}{new}"),
        _ => word,
    }
}

/// Whether each letter is a consonant.
fn consonants(word: &str) -> impl Iterator<Item = bool> {
    word.chars().scan(false, |consonant, letter| {
        *consonant = match letter {
            'a' | 'e' | 'i' | 'o' | 'u' => false,
            'y' => !*consonant,
            _ => true,
        };
        Some(*consonant)
    })
}

/// The measure m: how often a consonant follows a vowel.
fn measure(word: &str) -> usize {
    let mut before = true;
    consonants(word)
        .filter(|&consonant| !std::mem::replace(&mut before, consonant) && consonant)
        .count()
}

/// The paper's *d: the word ends with a double consonant.
fn ends_double(word: &str) -> bool {
    let mut letters = word.chars().rev();
    letters.next().is_some_and(|last| letters.next() == Some(last))
        && consonants(word).last() == Some(true)
}

/// The paper's *o: the word ends with consonant, vowel, consonant other than w, x and y.
///
/// In nltk also words that are vowel, consonant.
fn ends_short(word: &str) -> bool {
    match consonants(word).collect::<Vec<_>>().as_slice() {
        [false, true] => true,
        [.., true, false, true] => !word.ends_with(['w', 'x', 'y']),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the paper.
    #[test]
    fn measures_of_the_paper() {
        for (words, m) in [
            ("tr ee tree y by", 0),
            ("trouble oats trees ivy", 1),
            ("troubles private oaten orrery", 2),
        ] {
            words.split(' ').for_each(|word| assert_eq!(measure(word), m, "{word}"));
        }
    }

    /// Examples of the paper and of nltk's comments.
    #[test]
    fn stems_of_the_paper_and_of_nltk() {
        let examples = "caresses caress, ponies poni, dies die, died die, spied spi, agreed agre, \
            feed feed, hopping hop, falling fall, filing \
            file, happy happi, enjoy enjoy, geology geolog, relational relat, hopefulness hope, \
            formally formal, adoption adopt, \
            controlled control, roll roll, skies sky, news news, succeed succeed, cease ceas, rate \
            rate, yyyy yyyi";
        for example in examples.split(", ") {
            let (word, want) = example.split_once(' ').unwrap();
            assert_eq!(stem(word), want, "{word}");
        }
    }
}
