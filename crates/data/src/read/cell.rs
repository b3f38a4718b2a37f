//! Values of Arrow arrays.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, StructArray};
use arrow_schema::DataType;

/// One value of an array.
pub(super) enum Cell<'a> {
    Missing,
    Text(&'a str),
    Bytes(&'a [u8]),
    Integer(i128),
    Real(f64),
    Bool(bool),
    /// A structure, and its row.
    Struct(&'a StructArray, usize),
    /// An array of lists, and its row.
    List(&'a ArrayRef, usize),
    Other,
}

impl Cell<'_> {
    /// A name: a string, a whole number or a Boolean.
    pub(super) fn name(&self) -> Option<String> {
        match self {
            Self::Text(text) => Some((*text).into()),
            Self::Integer(number) => Some(number.to_string()),
            // Integers with missing values among them are often stored as floating-point numbers.
            Self::Real(number) if number.fract() == 0.0 && number.abs() < 1e15 => {
                Some((*number as i64).to_string())
            }
            Self::Bool(value) => Some(value.to_string()),
            _ => None,
        }
    }

    /// The kind of the value, for a message.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Missing => "nothing",
            Self::Text(_) => "a string",
            Self::Bytes(_) => "bytes",
            Self::Integer(_) => "an integer",
            Self::Real(_) => "a number",
            Self::Bool(_) => "a Boolean",
            Self::Struct(..) => "a structure",
            Self::List(..) => "a list",
            Self::Other => "a value of another type",
        }
    }
}

/// The value in a row of an array.
pub(super) fn cell(array: &ArrayRef, row: usize) -> Cell<'_> {
    if row >= array.len() || array.is_null(row) {
        return Cell::Missing;
    }
    match array.data_type() {
        DataType::Null => Cell::Missing,
        DataType::Boolean => Cell::Bool(array.as_boolean().value(row)),
        DataType::Int8 => Cell::Integer(array.as_primitive::<Int8Type>().value(row).into()),
        DataType::Int16 => Cell::Integer(array.as_primitive::<Int16Type>().value(row).into()),
        DataType::Int32 => Cell::Integer(array.as_primitive::<Int32Type>().value(row).into()),
        DataType::Int64 => Cell::Integer(array.as_primitive::<Int64Type>().value(row).into()),
        DataType::UInt8 => Cell::Integer(array.as_primitive::<UInt8Type>().value(row).into()),
        DataType::UInt16 => Cell::Integer(array.as_primitive::<UInt16Type>().value(row).into()),
        DataType::UInt32 => Cell::Integer(array.as_primitive::<UInt32Type>().value(row).into()),
        DataType::UInt64 => Cell::Integer(array.as_primitive::<UInt64Type>().value(row).into()),
        DataType::Float16 => real(array.as_primitive::<Float16Type>().value(row).to_f64()),
        DataType::Float32 => real(array.as_primitive::<Float32Type>().value(row).into()),
        DataType::Float64 => real(array.as_primitive::<Float64Type>().value(row)),
        DataType::Utf8 => Cell::Text(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => Cell::Text(array.as_string::<i64>().value(row)),
        DataType::Utf8View => Cell::Text(array.as_string_view().value(row)),
        DataType::Binary => Cell::Bytes(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => Cell::Bytes(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => Cell::Bytes(array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => Cell::Bytes(array.as_fixed_size_binary().value(row)),
        DataType::Struct(_) => Cell::Struct(array.as_struct(), row),
        DataType::List(_) | DataType::LargeList(_) => Cell::List(array, row),
        DataType::Dictionary(..) => dictionary(array, row),
        _ => Cell::Other,
    }
}

/// NaN is how a missing number is stored in an array without nulls.
fn real<'a>(number: f64) -> Cell<'a> {
    if number.is_nan() { Cell::Missing } else { Cell::Real(number) }
}

/// The value of a dictionary to which a row refers.
fn dictionary(array: &ArrayRef, row: usize) -> Cell<'_> {
    let Some(dictionary) = array.as_any_dictionary_opt() else { return Cell::Other };
    let key = match dictionary.keys().data_type() {
        DataType::Int8 => i128::from(dictionary.keys().as_primitive::<Int8Type>().value(row)),
        DataType::Int16 => dictionary.keys().as_primitive::<Int16Type>().value(row).into(),
        DataType::Int32 => dictionary.keys().as_primitive::<Int32Type>().value(row).into(),
        DataType::Int64 => dictionary.keys().as_primitive::<Int64Type>().value(row).into(),
        DataType::UInt8 => dictionary.keys().as_primitive::<UInt8Type>().value(row).into(),
        DataType::UInt16 => dictionary.keys().as_primitive::<UInt16Type>().value(row).into(),
        DataType::UInt32 => dictionary.keys().as_primitive::<UInt32Type>().value(row).into(),
        DataType::UInt64 => dictionary.keys().as_primitive::<UInt64Type>().value(row).into(),
        _ => return Cell::Other,
    };
    match usize::try_from(key) {
        Ok(key) => cell(dictionary.values(), key),
        Err(_) => Cell::Other,
    }
}

/// The value of a field of a structure; missing without the field.
pub(super) fn field<'a>(array: &'a StructArray, row: usize, name: &str) -> Cell<'a> {
    array.column_by_name(name).map_or(Cell::Missing, |values| cell(values, row))
}

/// The values of a list.
pub(super) fn list(array: &ArrayRef, row: usize) -> Option<ArrayRef> {
    match array.data_type() {
        DataType::List(_) => Some(array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => Some(array.as_list::<i64>().value(row)),
        _ => None,
    }
}
