//! The `.slm` container: one value has one encoding, and every byte is covered.

use slm_format::container::layout::{header, section, tensor};
use slm_format::container::{Container, ContainerWriter, Index, SectionKind, TensorLayout};
use slm_format::{Coded, ContentHash, Digest, Encoding, Limits};

use crate::Verdict;
use crate::recipe::Recipe;

/// All properties: the bytes as a file, as a file whose hashes were made right, and as a recipe.
pub fn container(data: &[u8]) {
    container_file(data);
    container_file(&sealed(data));
    container_recipe(data);
}

/// Reading never panics; a file that opens and whose hashes hold is, written again, the same bytes.
pub fn container_file(data: &[u8]) -> Verdict {
    let limits = Limits::STANDARD;
    let opened = match Container::open(data, &limits) {
        Ok(opened) => opened,
        Err(error) => return Verdict::Refused(error.code()),
    };
    let index = Index::parse(data, &limits).expect("the index of a file that opens can be read");
    assert_eq!(index.file_length(), data.len() as u64, "the length is another");
    if let Err(error) = opened.verify_all() {
        return Verdict::Refused(error.code());
    }
    // A reader takes the base weights anywhere; the writer puts them last.
    let last = opened.sections().last().map(|section| section.kind());
    if opened.tensors().is_empty() || last == Some(SectionKind::BaseWeights) {
        assert!(rewritten(&opened) == data, "written again, the bytes are others");
    }
    Verdict::Accepted
}

/// A file made by the recipe is accepted; any byte changed, cut off or added is noticed. Gives the verdict on what was bent.
pub fn container_recipe(data: &[u8]) -> Verdict {
    let mut recipe = Recipe::new(data);
    let bytes = valid(&mut recipe);
    assert_eq!(container_file(&bytes), Verdict::Accepted, "a valid file was refused");
    let mut bent = bytes.clone();
    let at = recipe.below(bent.len());
    bent[at] ^= recipe.byte().max(1);
    assert_ne!(container_file(&bent), Verdict::Accepted, "byte {at} is covered by nothing");
    // With its hashes made right again it may be another valid file, but then it holds as any.
    let verdict = container_file(&sealed(&bent));
    let cut = recipe.below(bytes.len());
    assert_ne!(container_file(&bytes[..cut]), Verdict::Accepted, "cut at {cut}");
    bent = bytes;
    bent.push(recipe.byte());
    assert_ne!(container_file(&bent), Verdict::Accepted, "a byte more");
    verdict
}

/// The file that a recipe makes.
pub fn container_sample(recipe: &[u8]) -> Vec<u8> {
    valid(&mut Recipe::new(recipe))
}

/// The same file with every hash that can be found made right: so that what is behind the hashes is tried too.
pub fn sealed(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    let Some(prefix) = Index::prefix_length(data, &Limits::STANDARD)
        .ok()
        .and_then(|length| usize::try_from(length).ok())
        .filter(|length| *length <= data.len())
    else {
        return bytes;
    };
    seal_tables(&mut bytes);
    let mut covered = bytes[..header::INDEX_BLAKE3 as usize].to_vec();
    covered.extend(&bytes[header::SIZE as usize..prefix]);
    put(&mut bytes, header::INDEX_BLAKE3, &ContentHash::of(&covered).to_bytes());
    bytes
}

/// Makes the hashes of sections and tensors right.
fn seal_tables(bytes: &mut [u8]) {
    let sections = u64::from(u32_at(bytes, header::SECTION_COUNT));
    let tensors = u64::from(u32_at(bytes, header::TENSOR_COUNT));
    let mut base = 0u64;
    for at in (0..sections).map(|index| header::SIZE + index * section::SIZE) {
        let (offset, length) =
            (u64_at(bytes, at + section::OFFSET), u64_at(bytes, at + section::LENGTH));
        let Some(payload) = range(bytes, offset, length) else { continue };
        let (sha256, blake3) = (Digest::of(payload), ContentHash::of(payload));
        if u32_at(bytes, at + section::KIND) == SectionKind::BaseWeights.number() {
            base = offset;
        }
        put(bytes, at + section::SHA256, &sha256.to_bytes());
        put(bytes, at + section::BLAKE3, &blake3.to_bytes());
    }
    let table = header::SIZE + sections * section::SIZE;
    for at in (0..tensors).map(|index| table + index * tensor::SIZE) {
        let (offset, length) =
            (u64_at(bytes, at + tensor::OFFSET), u64_at(bytes, at + tensor::LENGTH));
        let Some(start) = offset.checked_add(base) else { continue };
        let Some(payload) = range(bytes, start, length) else { continue };
        let blake3 = ContentHash::of(payload);
        put(bytes, at + tensor::BLAKE3, &blake3.to_bytes());
    }
}

fn rewritten(opened: &Container<'_>) -> Vec<u8> {
    let mut writer = ContainerWriter::new();
    for section in opened.sections() {
        if section.kind() != SectionKind::BaseWeights {
            writer.section(section.kind(), section.bytes()).expect("an accepted section");
        }
    }
    for tensor in opened.tensors() {
        writer.entry(tensor).expect("an accepted tensor");
    }
    let mut bytes = Vec::new();
    let written = writer.write_to(&mut bytes).expect("a vector takes every byte");
    assert_eq!(written.file_length, bytes.len() as u64, "the writer miscounts");
    assert_eq!(written.digest, Digest::of(&bytes), "the writer's digest is another");
    bytes
}

fn valid(recipe: &mut Recipe<'_>) -> Vec<u8> {
    let mut writer = ContainerWriter::new();
    let kinds: Vec<SectionKind> =
        SectionKind::all().filter(|kind| *kind != SectionKind::BaseWeights).collect();
    for _ in 0..recipe.below(5) {
        let kind = recipe.one_of(&kinds);
        let length = 1 + recipe.below(200);
        let payload = recipe.paint(length);
        let again = writer.section(kind, payload);
        assert!(again.is_ok() || kind.is_single(), "a section of kind {kind} was refused");
    }
    let encodings: Vec<Encoding> = Encoding::all().collect();
    for index in 0..recipe.below(4) {
        let encoding = recipe.one_of(&encodings);
        let mut shape = vec![encoding.block_elements() as u64 * (1 + recipe.below(2) as u64)];
        for _ in 0..recipe.below(4) {
            shape.push(1 + recipe.below(3) as u64);
        }
        let bytes = encoding.tensor_bytes(&shape).expect("a small shape has a size");
        let data = recipe.paint(usize::try_from(bytes).expect("a small size fits"));
        let name = format!("blk.{index}.{}", recipe.one_of(&["weight", "bias", "é"]));
        if TensorLayout::Interleaved16.fits(encoding) && recipe.below(2) == 1 {
            let content = ContentHash::of(&data);
            writer.interleaved_tensor(name, encoding, &shape, content, data)
        } else {
            writer.tensor(name, encoding, &shape, data)
        }
        .expect("a valid tensor");
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("a vector takes every byte");
    bytes
}

fn u32_at(bytes: &[u8], at: u64) -> u32 {
    range(bytes, at, 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: u64) -> u64 {
    range(bytes, at, 8).and_then(|eight| eight.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn range(bytes: &[u8], start: u64, length: u64) -> Option<&[u8]> {
    let end = start.checked_add(length)?;
    bytes.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
}

fn put(bytes: &mut [u8], at: u64, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at as usize..).and_then(|rest| rest.get_mut(..value.len())) {
        place.copy_from_slice(value);
    }
}
