//! The kind of a message: the message without the details of one input.
//!
//! Inputs with the same kind of message have taken the same path through a reader.

/// Largest length of a kind; longer messages are cut.
const MAX_LENGTH: usize = 300;

/// The message without digits, non-ASCII characters and quoted text.
///
/// Everything between the first and the last quotation mark is removed, because quoted text may
/// contain such marks. Parts separated by bars are handled separately.
pub fn shape(message: &str) -> String {
    let mut shape = message.split(" | ").map(part).collect::<Vec<_>>().join(" | ");
    shape.truncate(MAX_LENGTH);
    shape
}

fn part(message: &str) -> String {
    const MARKS: [char; 2] = ['"', '`'];
    let unquoted = match (message.find(MARKS), message.rfind(MARKS)) {
        (Some(first), Some(last)) => [&message[..first], "\"", &message[last + 1..]].concat(),
        _ => message.to_string(),
    };
    let mut shape = String::new();
    let mut hexadecimal = false;
    for letter in unquoted.chars() {
        hexadecimal &= letter.is_ascii_hexdigit();
        match letter {
            'x' if shape.ends_with('0') => hexadecimal = true,
            letter if hexadecimal && letter.is_ascii_hexdigit() => {}
            '0'..='9' | '.' | '-' if shape.ends_with('0') => {}
            '0'..='9' => shape.push('0'),
            letter if letter.is_ascii_graphic() || letter == ' ' => shape.push(letter),
            _ => {}
        }
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_of_inputs_are_removed() {
        let one = shape("x.json, line 12: \"a\\\"b 1\" must be one of `p`, `q` at line 3 | 0x0ab1");
        assert_eq!(one, shape("x.json, line 1: \"\" must be one of `q` at line 70 | 0xfff0"));
        assert_ne!(one, shape("x.json, line 1: \"\" must be 2e1"));
        assert_eq!(
            shape("unknown field `a` b\", expected `c` at line 1"),
            "unknown field \" at line 0"
        );
        assert!(shape(&"ab ".repeat(1000)).len() <= MAX_LENGTH);
    }
}
