//! Keys of a configuration: the field, its text and its default, declared in one place.

/// A key of a configuration, as the program prints it and the reference documents it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The name, without its section.
    pub name: &'static str,
    /// The doc comment of the field, line by line.
    pub text: &'static str,
    /// For a key without a default: a value as in TOML, printed as a comment.
    pub example: Option<&'static str>,
}

/// A part of a configuration that knows its keys.
pub trait Keys {
    /// Returns the keys, in the order in which they are printed.
    fn keys(&self) -> Vec<Key>;
}

/// Declares a struct whose fields are keys of a configuration.
///
/// Every field has a doc comment, which is the text of the key, and a default. A key that has no
/// value by default is an `Option` with an example of a value. The macro derives the serde traits,
/// and implements `Default` and [`Keys`].
///
/// Fields that are not keys but hold keys (sections, flattened structs) are declared in a block
/// `with`; the struct then implements [`Keys`] by hand, from its constant `KEYS`.
///
/// ```
/// use optim::Keys;
///
/// optim::keys! {
///     /// The section `[output]`.
///     #[derive(Clone, Debug)]
///     #[serde(default, deny_unknown_fields)]
///     pub struct Output {
///         /// The width of a line.
///         pub width: u64 = 80,
///         /// The file that is written.
///         pub file: Option<String> = None => "\"FILE\"",
///     }
/// }
/// assert_eq!(Output::default().width, 80);
/// assert_eq!(Output::default().keys()[1].example, Some("\"FILE\""));
/// assert_eq!(Output::KEYS[0].text.trim(), "The width of a line.");
/// ```
#[macro_export]
macro_rules! keys {
    (@implement $name:ident) => {
        impl $crate::Keys for $name {
            fn keys(&self) -> Vec<$crate::Key> {
                Self::KEYS.to_vec()
            }
        }
    };
    (@implement $name:ident $($holder:ident)+) => {};
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $(#[serde($($serde:tt)*)])*
                pub $field:ident: $type:ty = $default:expr $(=> $example:literal)?,
            )*
        }
        $(with {
            $(
                $(#[doc = $holder_doc:literal])+
                $(#[serde($($holder_serde:tt)*)])*
                pub $holder:ident: $holder_type:ty = $holder_default:expr,
            )*
        })?
    ) => {
        #[derive(PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        $(#[$meta])*
        pub struct $name {
            $($(#[doc = $doc])+ $(#[serde($($serde)*)])* pub $field: $type,)*
            $($($(#[doc = $holder_doc])+ $(#[serde($($holder_serde)*)])*
                pub $holder: $holder_type,)*)?
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* $($($holder: $holder_default,)*)? }
            }
        }

        impl $name {
            /// The keys that are fields of this struct.
            pub const KEYS: &'static [$crate::Key] = &[$(
                $crate::Key {
                    name: stringify!($field),
                    text: concat!($($doc, "\n"),+),
                    example: $crate::keys!(@example $($example)?),
                },
            )*];
        }

        $crate::keys!(@implement $name $($($holder)*)?);
    };
    (@example) => { None };
    (@example $example:literal) => { Some($example) };
}
