//! GGUF files that differ from a good one in one thing.

use std::borrow::Cow;

use slm_format::Encoding;
use slm_format::gguf::{self, Gguf, TensorSource, Value};

use super::LIMITS;

/// A tensor that can be changed.
#[derive(Debug, Clone)]
pub struct BentTensor<'a> {
    pub name: String,
    pub shape: Vec<u64>,
    pub encoding: Encoding,
    pub data: Cow<'a, [u8]>,
}

/// A GGUF file, taken apart.
#[derive(Debug, Clone)]
pub struct Bend<'a> {
    pub metadata: Vec<(String, Value<'a>)>,
    pub tensors: Vec<BentTensor<'a>>,
}

impl<'a> Bend<'a> {
    pub fn of(file: &'a [u8]) -> Bend<'a> {
        let gguf = Gguf::parse(file, &LIMITS).expect("a good file");
        Bend {
            metadata: gguf
                .metadata()
                .iter()
                .map(|(key, value)| (key.to_owned(), value.clone()))
                .collect(),
            tensors: gguf
                .tensors()
                .iter()
                .map(|tensor| BentTensor {
                    name: tensor.name.to_owned(),
                    shape: tensor.shape.clone(),
                    encoding: tensor.encoding,
                    data: Cow::Borrowed(tensor.data),
                })
                .collect(),
        }
    }

    /// Sets a metadata value, a new one last.
    pub fn set(mut self, key: &str, value: Value<'a>) -> Bend<'a> {
        match self.metadata.iter_mut().find(|entry| entry.0 == key) {
            Some(entry) => entry.1 = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
        self
    }

    /// Takes a metadata entry out.
    pub fn unset(mut self, key: &str) -> Bend<'a> {
        let before = self.metadata.len();
        self.metadata.retain(|entry| entry.0 != key);
        assert_eq!(self.metadata.len() + 1, before, "{key} was there");
        self
    }

    pub fn tensor(&mut self, name: &str) -> &mut BentTensor<'a> {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("a tensor")
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let metadata: Vec<(&str, Value<'_>)> =
            self.metadata.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
        let tensors: Vec<TensorSource<'_>> = self
            .tensors
            .iter()
            .map(|tensor| TensorSource {
                name: &tensor.name,
                shape: &tensor.shape,
                encoding: tensor.encoding,
                data: &tensor.data,
            })
            .collect();
        let mut file = Vec::new();
        gguf::write(&mut file, &metadata, &tensors).expect("a file");
        file
    }
}
