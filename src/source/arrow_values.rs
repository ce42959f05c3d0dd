//! Arrow arrays as byte strings and numbers.
//!
//! One value that does not fit never costs its neighbours: it is reported by its index, and stands as an empty string
//! or a zero so that all indices stay where they are. Used by `columns`.

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray};
use arrow::compute::take;
use arrow::datatypes::{
    DataType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};

use super::Blobs;
use crate::data::{Element, Values};
use crate::error::{Error, Result};

/// What the numbers of an array become, from narrow to wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NumberType {
    U8,
    U16,
    U32,
    F32,
}

impl NumberType {
    /// The narrowest that takes every category of an array of this type; 64-bit ids are expected to be small.
    pub(super) fn of(data_type: &DataType) -> Option<Self> {
        match data_type {
            DataType::Boolean | DataType::Int8 | DataType::UInt8 => Some(Self::U8),
            DataType::Int16 | DataType::UInt16 => Some(Self::U16),
            DataType::Int32 | DataType::UInt32 | DataType::Int64 | DataType::UInt64 => Some(Self::U32),
            DataType::Float16 | DataType::Float32 | DataType::Float64 => Some(Self::F32),
            DataType::Dictionary(_, values) => Self::of(values),
            _ => None,
        }
    }
}

/// The numbers of an array.
#[derive(Debug, PartialEq)]
pub(super) struct Numbers {
    pub(super) values: Values,
    /// Which of them are null; `None` where none is.
    pub(super) missing: Option<Vec<bool>>,
    /// Which of them do not fit, by index and with the reason.
    pub(super) bad: Vec<(usize, String)>,
}

/// The array's numbers as this type.
pub(super) fn numbers(array: &dyn Array, to: NumberType) -> Result<Numbers> {
    let array = &*plain(array)?;
    match to {
        NumberType::U8 => categories::<u8>(array, u64::from(u8::MAX)),
        NumberType::U16 => categories::<u16>(array, u64::from(u16::MAX)),
        NumberType::U32 => categories::<u32>(array, u64::from(u32::MAX)),
        NumberType::F32 => reals(array),
    }
}

/// Texts or byte strings, with the reason why a record is not there.
pub(super) fn blobs(array: &dyn Array) -> Result<(Blobs, Vec<(usize, String)>)> {
    let array = &*plain(array)?;
    Ok(match array.data_type() {
        DataType::Utf8 => strings(array, array.as_string::<i32>().iter().map(|text| text.map(str::as_bytes))),
        DataType::LargeUtf8 => strings(array, array.as_string::<i64>().iter().map(|text| text.map(str::as_bytes))),
        DataType::Utf8View => strings(array, array.as_string_view().iter().map(|text| text.map(str::as_bytes))),
        DataType::Binary => strings(array, array.as_binary::<i32>().iter()),
        DataType::LargeBinary => strings(array, array.as_binary::<i64>().iter()),
        DataType::BinaryView => strings(array, array.as_binary_view().iter()),
        other => return Err(Error::data(format!("{other} is neither text nor bytes"))),
    })
}

fn strings<'a>(array: &dyn Array, items: impl Iterator<Item = Option<&'a [u8]>>) -> (Blobs, Vec<(usize, String)>) {
    let mut blobs = Blobs { bytes: Vec::new(), ends: Vec::with_capacity(array.len()) };
    let mut bad = Vec::new();
    for (record, item) in items.enumerate() {
        blobs.push(item.unwrap_or_default());
        if item.is_none() {
            bad.push((record, "null".into()));
        }
    }
    (blobs, bad)
}

/// The array without its dictionary.
fn plain(array: &dyn Array) -> Result<ArrayRef> {
    match array.as_any_dictionary_opt() {
        None => Ok(array.slice(0, array.len())),
        Some(dictionary) => {
            take(dictionary.values(), dictionary.keys(), None).map_err(|error| Error::data(format!("{error}")))
        }
    }
}

/// Does the same to an array of whatever integers or real numbers.
macro_rules! with_primitive {
    ($array:expr, [$($type:ident => $arrow:ident),*], $typed:ident => $body:expr, $otherwise:expr) => {
        match $array.data_type() {
            $(DataType::$type => {
                let $typed: &PrimitiveArray<$arrow> = $array.as_primitive();
                $body
            })*
            _ => $otherwise,
        }
    };
}

fn categories<E>(array: &dyn Array, max: u64) -> Result<Numbers>
where
    E: Element + Default + From<bool>,
    E: TryFrom<i8> + TryFrom<i16> + TryFrom<i32> + TryFrom<i64>,
    E: TryFrom<u8> + TryFrom<u16> + TryFrom<u32> + TryFrom<u64>,
{
    if let Some(flags) = array.as_boolean_opt() {
        let values = flags.iter().map(|flag| E::from(flag.unwrap_or_default())).collect();
        return Ok(Numbers { values: E::column(values), missing: missing(flags), bad: Vec::new() });
    }
    let mut bad = Vec::new();
    let values: Vec<E> = with_primitive!(
        array,
        [Int8 => Int8Type, Int16 => Int16Type, Int32 => Int32Type, Int64 => Int64Type,
         UInt8 => UInt8Type, UInt16 => UInt16Type, UInt32 => UInt32Type, UInt64 => UInt64Type],
        typed => convert(typed, &mut bad, |value| {
            E::try_from(value).map_err(|_| format!("{value} is not a category: it is outside 0..={max}"))
        }),
        return Err(Error::data(format!("{} is not a category", array.data_type())))
    );
    Ok(Numbers { values: E::column(values), missing: missing(array), bad })
}

fn reals(array: &dyn Array) -> Result<Numbers> {
    let mut bad = Vec::new();
    if let Some(flags) = array.as_boolean_opt() {
        let values = flags.iter().map(|flag| f32::from(u8::from(flag.unwrap_or_default()))).collect();
        return Ok(Numbers { values: Values::F32(values), missing: missing(flags), bad });
    }
    let values = with_primitive!(
        array,
        [Int8 => Int8Type, Int16 => Int16Type, Int32 => Int32Type, Int64 => Int64Type,
         UInt8 => UInt8Type, UInt16 => UInt16Type, UInt32 => UInt32Type, UInt64 => UInt64Type,
         Float16 => Float16Type, Float32 => Float32Type, Float64 => Float64Type],
        typed => convert_reals(typed, &mut bad),
        return Err(Error::data(format!("{} is not a number", array.data_type())))
    );
    Ok(Numbers { values: Values::F32(values), missing: missing(array), bad })
}

/// Every value that is there and fits; zero elsewhere.
fn convert<T: ArrowPrimitiveType, E: Copy + Default>(
    array: &PrimitiveArray<T>,
    bad: &mut Vec<(usize, String)>,
    to: impl Fn(T::Native) -> std::result::Result<E, String>,
) -> Vec<E> {
    let mut values = Vec::with_capacity(array.len());
    for (index, &value) in array.values().iter().enumerate() {
        // What lies under a null is anything.
        let fits = if array.is_null(index) { Ok(E::default()) } else { to(value) };
        values.push(fits.unwrap_or_else(|reason| {
            bad.push((index, reason));
            E::default()
        }));
    }
    values
}

fn convert_reals<T: Real>(array: &PrimitiveArray<T>, bad: &mut Vec<(usize, String)>) -> Vec<f32> {
    convert(array, bad, |value| {
        let real = T::real(value);
        if real.is_finite() {
            Ok(real)
        } else {
            Err(format!("{value:?} is not a finite 32-bit number; a missing one is null"))
        }
    })
}

fn missing(array: &dyn Array) -> Option<Vec<bool>> {
    let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0)?;
    Some(nulls.iter().map(|valid| !valid).collect())
}

/// Numbers that can be real ones.
trait Real: ArrowPrimitiveType {
    fn real(value: Self::Native) -> f32;
}

macro_rules! real {
    ($($type:ty),*) => {$(
        impl Real for $type {
            fn real(value: Self::Native) -> f32 {
                value as f32
            }
        }
    )*};
}
real!(Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type);
real!(Float32Type, Float64Type);

impl Real for Float16Type {
    fn real(value: Self::Native) -> f32 {
        value.into()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        BinaryViewArray, BooleanArray, DictionaryArray, Float32Array, Float64Array, Int8Array, Int64Array,
        LargeBinaryArray, LargeStringArray, StringArray, StringViewArray, UInt8Array, UInt16Array, UInt64Array,
    };
    use arrow::datatypes::Int8Type;

    use super::*;

    #[test]
    fn a_number_that_does_not_fit_is_named_and_a_null_is_missing() {
        let read = numbers(&Int64Array::from(vec![Some(3), None, Some(-1), Some(1 << 40)]), NumberType::U32).unwrap();
        assert_eq!(read.values, Values::U32(vec![3, 0, 0, 0]));
        assert_eq!(read.missing, Some(vec![false, true, false, false]));
        let reasons: Vec<_> = read.bad.iter().map(|(index, reason)| (*index, reason.as_str())).collect();
        assert_eq!(
            reasons,
            [
                (2, "-1 is not a category: it is outside 0..=4294967295"),
                (3, "1099511627776 is not a category: it is outside 0..=4294967295")
            ]
        );
        let read = numbers(&Float64Array::from(vec![0.5, f64::NAN, 1e300]), NumberType::F32).unwrap();
        assert_eq!(read.values, Values::F32(vec![0.5, 0.0, 0.0]));
        assert_eq!(read.bad.iter().map(|bad| bad.0).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn every_type_of_number_is_read() {
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(UInt8Array::from(vec![0, 1])),
            Arc::new(Int8Array::from(vec![0, 1])),
            Arc::new(BooleanArray::from(vec![false, true])),
            Arc::new(UInt16Array::from(vec![0, 1])),
            Arc::new(UInt64Array::from(vec![0, 1])),
            Arc::new(Float32Array::from(vec![0.0, 1.0])),
        ];
        for array in &arrays {
            let natural = NumberType::of(array.data_type()).unwrap();
            let read = numbers(array, natural).unwrap();
            assert_eq!((read.values.real(1), read.values.len(), read.bad.len()), (1.0, 2, 0));
            assert_eq!(numbers(array, NumberType::F32).unwrap().values, Values::F32(vec![0.0, 1.0]));
        }
        assert!(numbers(&StringArray::from(vec!["1"]), NumberType::U8).is_err());
        assert!(numbers(&Float32Array::from(vec![1.0]), NumberType::U8).is_err());
    }

    #[test]
    fn every_type_of_string_is_read_and_a_null_one_is_bad() {
        let items = [Some("a"), None, Some(""), Some("quite a bit longer than a view"), Some("a")];
        let bytes: Vec<Option<&[u8]>> = items.iter().map(|item| item.map(str::as_bytes)).collect();
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from(items.to_vec())),
            Arc::new(LargeStringArray::from(items.to_vec())),
            Arc::new(StringViewArray::from(items.to_vec())),
            Arc::new(LargeBinaryArray::from(bytes.clone())),
            Arc::new(BinaryViewArray::from(bytes.clone())),
            Arc::new(items.into_iter().collect::<DictionaryArray<Int8Type>>()),
        ];
        for array in arrays {
            let (blobs, bad) = blobs(&array).unwrap();
            for (record, item) in items.iter().enumerate() {
                assert_eq!(blobs.get(record), item.unwrap_or_default().as_bytes());
            }
            assert_eq!(bad, [(1, "null".to_string())]);
        }
        assert!(blobs(&Int64Array::from(vec![1])).is_err());
    }
}
