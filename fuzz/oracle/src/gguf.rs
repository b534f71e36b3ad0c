//! GGUF: what is accepted can be written again, and is then the same.

use slm_format::gguf::{self, Gguf, TensorSource, Value};
use slm_format::{Coded, Encoding, Limits};

use crate::Verdict;
use crate::recipe::Recipe;

/// Both properties.
pub fn gguf(data: &[u8]) {
    gguf_file(data);
    gguf_recipe(data);
}

/// Reading never panics; an accepted file, written again from its metadata as they stand and from their decoded values, has the same metadata,
/// byte for byte, and the same tensors; and the second writing gives the bytes of the first.
pub fn gguf_file(data: &[u8]) -> Verdict {
    let file = match Gguf::parse(data, &Limits::STANDARD) {
        Ok(file) => file,
        Err(error) => return Verdict::Refused(error.code()),
    };
    let tensors: Vec<TensorSource<'_>> = file
        .tensors()
        .iter()
        .map(|tensor| TensorSource {
            name: tensor.name,
            shape: &tensor.shape,
            encoding: tensor.encoding,
            data: tensor.data,
        })
        .collect();
    let mut verbatim = Vec::new();
    gguf::write_raw(&mut verbatim, &file.raw_metadata(), &tensors)
        .expect("an accepted file can be written");
    let again = Gguf::parse(&verbatim, &Limits::STANDARD).expect("a written file is accepted");
    same(&file, &again);
    assert_eq!(again.version(), file.version(), "the version changed");

    let entries: Vec<(&str, Value<'_>)> =
        file.metadata().iter().map(|(key, value)| (key, value.clone())).collect();
    let mut decoded = Vec::new();
    gguf::write(&mut decoded, &entries, &tensors).expect("decoded metadata can be written");
    let again = Gguf::parse(&decoded, &Limits::STANDARD).expect("a written file is accepted");
    same(&file, &again);
    if file.version() == again.version() {
        assert_eq!(verbatim, decoded, "two ways of writing differ");
    }
    Verdict::Accepted
}

/// A file made by the recipe is accepted; cut short or with one byte changed, it is refused or holds as any file. Gives the verdict on what was bent.
pub fn gguf_recipe(data: &[u8]) -> Verdict {
    let mut recipe = Recipe::new(data);
    let bytes = valid(&mut recipe);
    assert_eq!(gguf_file(&bytes), Verdict::Accepted, "a valid file was refused");
    let mut bent = bytes.clone();
    // Most faults are in what comes before the data.
    let at = recipe.below(bent.len().min(2048));
    bent[at] = recipe.byte();
    gguf_file(&bytes[..recipe.below(bytes.len())]);
    gguf_file(&bent)
}

/// The file that a recipe makes.
pub fn gguf_sample(recipe: &[u8]) -> Vec<u8> {
    valid(&mut Recipe::new(recipe))
}

fn same(file: &Gguf<'_>, again: &Gguf<'_>) {
    assert_eq!(again.metadata_bytes(), file.metadata_bytes(), "metadata changed");
    assert_eq!(again.alignment(), file.alignment(), "the alignment changed");
    assert_eq!(again.tensors().len(), file.tensors().len(), "the number of tensors changed");
    for (one, other) in file.tensors().iter().zip(again.tensors()) {
        assert_eq!((one.name, &one.shape), (other.name, &other.shape), "a tensor changed");
        assert_eq!(one.encoding, other.encoding, "encoding of {}", one.name);
        assert!(one.data == other.data, "data of {} changed", one.name);
    }
}

fn valid(recipe: &mut Recipe<'_>) -> Vec<u8> {
    let alignment = recipe.one_of(&[32u32, 1, 8, 64, 256]);
    let keys: Vec<String> = (0..recipe.below(6)).map(|index| format!("key.{index}")).collect();
    let mut metadata = vec![("general.alignment", Value::U32(alignment))];
    for key in &keys {
        metadata.push((key, value(recipe)));
    }
    let mut owned = Vec::new();
    for index in 0..recipe.below(5) {
        let encodings: Vec<Encoding> =
            Encoding::all().filter(|encoding| encoding.ggml_type().is_some()).collect();
        let encoding = recipe.one_of(&encodings);
        let mut shape = vec![encoding.block_elements() as u64 * (1 + recipe.below(3) as u64)];
        for _ in 0..recipe.below(4) {
            shape.push(1 + recipe.below(3) as u64);
        }
        let bytes = encoding.tensor_bytes(&shape).expect("a small shape has a size");
        let data = recipe.paint(usize::try_from(bytes).expect("a small size fits"));
        owned.push((format!("blk.{index}.weight"), shape, encoding, data));
    }
    let tensors: Vec<TensorSource<'_>> = owned
        .iter()
        .map(|(name, shape, encoding, data)| TensorSource {
            name,
            shape,
            encoding: *encoding,
            data,
        })
        .collect();
    let mut bytes = Vec::new();
    gguf::write(&mut bytes, &metadata, &tensors).expect("valid values can be written");
    bytes
}

fn value(recipe: &mut Recipe<'_>) -> Value<'static> {
    match recipe.below(14) {
        0 => Value::U8(recipe.byte()),
        1 => Value::I8(recipe.byte() as i8),
        2 => Value::U16(recipe.u64() as u16),
        3 => Value::I16(recipe.u64() as i16),
        4 => Value::U32(recipe.u64() as u32),
        5 => Value::I32(recipe.u64() as i32),
        6 => Value::F32(f32::from_bits(recipe.u64() as u32)),
        7 => Value::Bool(recipe.byte() & 1 == 1),
        8 => Value::Str(recipe.one_of(&["", "llama", "½ ②", "a\0b"])),
        9 => Value::U64(recipe.u64()),
        10 => Value::I64(recipe.u64() as i64),
        11 => Value::F64(f64::from_bits(recipe.u64())),
        12 => Value::str_array(vec!["", "a", "\u{10ffff}"]),
        _ => {
            let bits: Vec<u32> = (0..recipe.below(4)).map(|_| recipe.u64() as u32).collect();
            Value::u32_array(&bits)
        }
    }
}
