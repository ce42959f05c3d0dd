//! Parameters and optimizer buffers as `safetensors` files: the one door to that crate.
//!
//! A parameter block is one `F32` tensor, `param.0000.sum` of shape `[units, children]` or `param.0001.input` of shape
//! `[slots, units]`: as it lies in the circuit's layout, so that other programs can read a model without ours. A buffer
//! of an optimizer is one flat tensor under its own name. Values go to the file and come back in small pieces and to
//! the same bits.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::hashed_file::{self, CheckedReader, FileHash, HashingWriter};
use crate::backend::Tensor;
use crate::circuit::{Circuit, ParamId, ParamKind, Params};
use crate::error::{Error, Result};

/// Numbers turned into bytes, or back, at once.
const PIECE: usize = 1 << 14;

/// Writes the parameters of a circuit.
pub(super) fn write_params(path: &Path, circuit: &Circuit, params: &Params) -> Result<FileHash> {
    let tensors = circuit.param_ids().map(|id| {
        let (name, shape) = describe(circuit, id);
        Entry { name, shape, values: Values::F32(&params.values()[params.layout().block(id).values.clone()]) }
    });
    write(path, tensors.collect(), None)
}

/// Writes named tensors and notes about them, as another program expects them.
pub(super) fn write_tensors<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = (&'a str, Vec<usize>, &'a [f32])>,
    notes: HashMap<String, String>,
) -> Result<()> {
    let entry = |(name, shape, values): (&str, Vec<usize>, &'a [f32])| Entry {
        name: name.to_string(),
        shape,
        values: Values::F32(values),
    };
    write(path, tensors.into_iter().map(entry).collect(), Some(notes)).map(|_| ())
}

/// Reads the parameters of a circuit.
pub(super) fn read_params(path: &Path, expected: &FileHash, circuit: &Circuit) -> Result<Params> {
    let (mut reader, header) = open(path, expected)?;
    let blocks: BTreeMap<String, ParamId> = circuit.param_ids().map(|id| (describe(circuit, id).0, id)).collect();
    let names = header.offset_keys();
    if names.len() != blocks.len() {
        let why = format!("has {} tensors where the circuit has {} parameter blocks", names.len(), blocks.len());
        return Err(reader.damaged(&why));
    }
    // Every name is there once and is a block's, so together they are the whole circuit.
    for name in &names {
        let Some(id) = blocks.get(name) else {
            return Err(reader.damaged(&format!("tensor `{name}` is no parameter block of the circuit")));
        };
        let (found, shape) = (info(&header, name), describe(circuit, *id).1);
        if found.dtype != Dtype::F32 || found.shape != shape {
            let why = format!("tensor `{name}` is {} {:?} where F32 {shape:?} belongs", found.dtype, found.shape);
            return Err(reader.damaged(&why));
        }
    }
    let mut values = vec![0.0; circuit.layout().num_values()];
    for name in &names {
        read_numbers(
            &mut reader,
            &mut values[circuit.layout().block(blocks[name]).values.clone()],
            f32::from_le_bytes,
        )?;
    }
    let place = reader.place.clone();
    reader.finish()?;
    // Not `Params::from_values`: a location of −0 is one that a density may have learned, and comes back as it was.
    // Weights are never −0, which would compare as above everything.
    for (block, layout) in circuit.params().iter().zip(circuit.layout().blocks()) {
        let weights = match &block.kind {
            ParamKind::Sum { .. } => true,
            ParamKind::Input(distribution) => distribution.is_table(),
        };
        if weights {
            values[layout.values.clone()].iter_mut().for_each(|value| *value += 0.0);
        }
    }
    let params = Params::trusted(circuit, values);
    params.check(circuit).map_err(|e| e.at(place))?;
    Ok(params)
}

/// Writes the buffers of an optimizer.
pub(super) fn write_buffers(path: &Path, buffers: &BTreeMap<String, Tensor>) -> Result<FileHash> {
    let tensors = buffers.iter().map(|(name, buffer)| {
        let (len, values) = match buffer {
            Tensor::F32(values) => (values.len(), Values::F32(values)),
            Tensor::F64(values) => (values.len(), Values::F64(values)),
        };
        Entry { name: name.clone(), shape: vec![len], values }
    });
    write(path, tensors.collect(), None)
}

/// Reads the buffers of an optimizer; whether they fit is for the optimizer to say.
pub(super) fn read_buffers(path: &Path, expected: &FileHash) -> Result<BTreeMap<String, Tensor>> {
    let (mut reader, header) = open(path, expected)?;
    let mut buffers = BTreeMap::new();
    for name in header.offset_keys() {
        let TensorInfo { dtype, data_offsets: (start, end), .. } = info(&header, &name);
        let bytes = end - start; // what the file holds, as `open` has checked
        let buffer = match dtype {
            Dtype::F32 => {
                let mut values = vec![0.0; bytes / 4];
                read_numbers(&mut reader, &mut values, f32::from_le_bytes)?;
                Tensor::F32(values)
            }
            Dtype::F64 => {
                let mut values = vec![0.0; bytes / 8];
                read_numbers(&mut reader, &mut values, f64::from_le_bytes)?;
                Tensor::F64(values)
            }
            other => return Err(reader.damaged(&format!("tensor `{name}` is {other}, no buffer of an optimizer"))),
        };
        buffers.insert(name, buffer);
    }
    reader.finish()?;
    Ok(buffers)
}

/// A block's name and shape in a file.
fn describe(circuit: &Circuit, id: ParamId) -> (String, Vec<usize>) {
    let block = circuit.layout().block(id);
    match &circuit.params()[id.index()].kind {
        ParamKind::Sum { .. } => (format!("param.{:04}.sum", id.index()), vec![block.units(), block.values_per_row]),
        ParamKind::Input(_) => (format!("param.{:04}.input", id.index()), vec![block.values_per_row, block.units()]),
    }
}

/// A tensor to be written.
struct Entry<'a> {
    name: String,
    shape: Vec<usize>,
    values: Values<'a>,
}

#[derive(Clone, Copy)]
enum Values<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
}

fn write(path: &Path, mut entries: Vec<Entry<'_>>, notes: Option<HashMap<String, String>>) -> Result<FileHash> {
    entries.sort_by_key(|entry| matches!(entry.values, Values::F32(_))); // the wider first keeps every tensor aligned
    let mut at = 0;
    let infos = entries.iter().map(|entry| {
        let (dtype, bytes) = match entry.values {
            Values::F32(values) => (Dtype::F32, size_of_val(values)),
            Values::F64(values) => (Dtype::F64, size_of_val(values)),
        };
        at += bytes;
        (entry.name.clone(), TensorInfo { dtype, shape: entry.shape.clone(), data_offsets: (at - bytes, at) })
    });
    let refuse = |why: &dyn std::fmt::Display| Error::state(format!("{}: cannot be written: {why}", path.display()));
    let header = Metadata::new(notes, infos.collect()).map_err(|e| refuse(&e))?;
    let mut header = serde_json::to_vec(&header).map_err(|e| refuse(&e))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    hashed_file::write(path, |out| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        entries.iter().try_for_each(|entry| match entry.values {
            Values::F32(values) => write_numbers(out, values, f32::to_le_bytes),
            Values::F64(values) => write_numbers(out, values, f64::to_le_bytes),
        })
    })
}

fn write_numbers<T: Copy, const N: usize>(
    out: &mut HashingWriter,
    values: &[T],
    to_bytes: impl Fn(T) -> [u8; N],
) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(N * PIECE.min(values.len()));
    for piece in values.chunks(PIECE) {
        bytes.clear();
        bytes.extend(piece.iter().flat_map(|&value| to_bytes(value)));
        out.write_all(&bytes)?;
    }
    Ok(())
}

/// Opens a file and reads its header, which describes exactly the rest of the file.
fn open(path: &Path, expected: &FileHash) -> Result<(CheckedReader, Metadata)> {
    let mut reader = CheckedReader::open(path, expected)?;
    let mut length = [0; 8];
    reader.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > reader.left() {
        return Err(reader.damaged("its header is longer than the file"));
    }
    let mut header = vec![0; length as usize];
    reader.read_exact(&mut header)?;
    let header: Metadata =
        serde_json::from_slice(&header).map_err(|e| reader.damaged(&format!("its header is not valid: {e}")))?;
    if header.data_len() as u64 != reader.left() {
        return Err(reader.damaged(&format!("its header describes {} bytes of {}", header.data_len(), reader.left())));
    }
    Ok((reader, header))
}

fn info<'a>(header: &'a Metadata, name: &str) -> &'a TensorInfo {
    header.info(name).expect("the name comes from this header")
}

fn read_numbers<T, const N: usize>(
    reader: &mut CheckedReader,
    into: &mut [T],
    from_bytes: impl Fn([u8; N]) -> T,
) -> Result<()> {
    let mut bytes = vec![0; N * PIECE.min(into.len())];
    for piece in into.chunks_mut(PIECE) {
        let bytes = &mut bytes[..N * piece.len()];
        reader.read_exact(bytes)?;
        let (numbers, _) = bytes.as_chunks::<N>();
        piece.iter_mut().zip(numbers).for_each(|(value, bytes)| *value = from_bytes(*bytes));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;
    use safetensors::SafeTensors;

    use super::*;
    use crate::circuit::{Categorical, Gaussian};
    use crate::data::Digest;
    use crate::structure::{Tying, hmm, hmm_with};

    fn rewritten(path: &Path, edit: impl FnOnce(&mut Vec<u8>)) -> FileHash {
        let mut bytes = fs::read(path).unwrap();
        edit(&mut bytes);
        fs::write(path, &bytes).unwrap();
        FileHash { bytes: bytes.len() as u64, sha256: Digest::of(&bytes) }
    }

    #[test]
    fn other_programs_find_a_block_under_its_name_in_its_shape() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m");
        let circuit = hmm(4, 3, Categorical::new(5).unwrap()).unwrap();
        let params = Params::random(&circuit, 1, 2.0).unwrap();
        write_params(&path, &circuit, &params).unwrap();
        let bytes = fs::read(&path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let shapes = [("param.0000.input", vec![5, 3]), ("param.0001.sum", vec![3, 3]), ("param.0002.sum", vec![1, 3])];
        assert_eq!(file.len(), shapes.len());
        for (name, shape) in shapes {
            assert_eq!(file.tensor(name).unwrap().shape(), shape);
        }
        let third: Vec<f32> = file
            .tensor("param.0002.sum")
            .unwrap()
            .data()
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        assert_eq!(third, params.row(ParamId(2), 0));
    }

    #[test]
    fn a_density_keeps_the_sign_of_its_zero() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m");
        let circuit = hmm(2, 2, Gaussian::new(0.1, 0.0).unwrap()).unwrap();
        let mut values = Params::random(&circuit, 1, 2.0).unwrap().values().to_vec();
        values[0] = -0.0;
        let params = Params::trusted(&circuit, values);
        let hash = write_params(&path, &circuit, &params).unwrap();
        let again = read_params(&path, &hash, &circuit).unwrap();
        let bits = |params: &Params| params.values().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&again), bits(&params));
    }

    #[test]
    fn a_file_that_describes_itself_wrongly_is_refused_whatever_its_hash() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m");
        let circuit = hmm(4, 3, Categorical::new(5).unwrap()).unwrap();
        let write_anew = || {
            fs::remove_file(&path).ok();
            write_params(&path, &circuit, &Params::random(&circuit, 1, 2.0).unwrap()).unwrap();
        };
        let replace = |from: &'static str, to: &'static str| {
            move |bytes: &mut Vec<u8>| {
                let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
                bytes.splice(at..at + from.len(), to.bytes());
            }
        };
        type Edit = Box<dyn FnOnce(&mut Vec<u8>)>;
        let edits: Vec<(Edit, &str)> = vec![
            (Box::new(|bytes| bytes[7] = 0x7f), "header is longer"),
            (Box::new(|bytes| bytes[8] = b'['), "header is not valid"),
            (Box::new(replace("param.0001.sum", "param.0009.sum")), "`param.0009.sum` is no parameter block"),
            (Box::new(replace("[5,3]", "[3,5]")), "[3, 5] where F32 [5, 3]"),
            (Box::new(replace("F32", "I32")), "is I32"),
            (Box::new(|bytes| bytes.truncate(bytes.len() - 4)), "describes"),
            (Box::new(|bytes| bytes.truncate(5)), "ends too early"),
            (
                Box::new(|bytes| {
                    let at = bytes.len() - 4;
                    bytes[at..].copy_from_slice(&f32::NAN.to_le_bytes())
                }),
                "NaN",
            ),
        ];
        for (edit, words) in edits {
            write_anew();
            let hash = rewritten(&path, edit);
            let error = read_params(&path, &hash, &circuit).unwrap_err();
            assert!(error.to_string().contains(words), "{error} has no {words}");
        }
        write_anew();
        let hash = rewritten(&path, replace("F32", "I32"));
        assert!(read_buffers(&path, &hash).unwrap_err().to_string().contains("I32"));
        let other = hmm_with(4, 3, Categorical::new(5).unwrap(), Tying::Inhomogeneous).unwrap();
        write_anew();
        let hash = rewritten(&path, |_| {});
        assert!(read_params(&path, &hash, &other).unwrap_err().to_string().contains("has 3 tensors"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))] // each waits for the disk

        #[test]
        fn buffers_come_back_to_the_same_bits(
            singles in proptest::collection::vec(any::<u32>(), 0..40),
            doubles in proptest::collection::vec(any::<u64>(), 0..40),
            many in 0..2usize,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("b");
            let repeat = 1 + many * PIECE / 10; // some cross the size of a piece
            let singles: Vec<f32> = singles.repeat(repeat).into_iter().map(f32::from_bits).collect();
            let doubles: Vec<f64> = doubles.repeat(repeat).into_iter().map(f64::from_bits).collect();
            let buffers = BTreeMap::from([
                ("a_single".to_string(), Tensor::F32(singles.clone())),
                ("b_double".to_string(), Tensor::F64(doubles.clone())),
                ("empty \"é\"".to_string(), Tensor::F32(vec![])),
            ]);
            let hash = write_buffers(&path, &buffers).unwrap();
            let bytes = fs::read(&path).unwrap();
            let file = SafeTensors::deserialize(&bytes).unwrap();
            let at = file.tensor("b_double").unwrap().data().as_ptr() as usize - bytes.as_ptr() as usize;
            prop_assert!(at.is_multiple_of(8), "doubles at byte {} cannot be mapped", at);
            let again = read_buffers(&path, &hash).unwrap();
            let (Tensor::F32(a), Tensor::F64(b)) = (&again["a_single"], &again["b_double"]) else {
                panic!("other types")
            };
            prop_assert!(again.len() == 3);
            prop_assert!(a.iter().map(|x| x.to_bits()).eq(singles.iter().map(|x| x.to_bits())));
            prop_assert!(b.iter().map(|x| x.to_bits()).eq(doubles.iter().map(|x| x.to_bits())));
        }
    }
}
