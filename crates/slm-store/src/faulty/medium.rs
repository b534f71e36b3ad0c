//! What a medium keeps through a power cut: files and entries as they are, and as they were when they were last synced.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

use crate::layout;
use crate::mem::MemStorage;

/// A step that changes a medium, or makes a change outlive a power cut. Paths are relative to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A folder is made.
    MakeDir(String),
    /// An empty file is made.
    Create(String),
    /// Bytes are written to a file.
    Write(String, usize),
    /// A file is given this length.
    Truncate(String, u64),
    /// A file's bytes are synced.
    Sync(String),
    /// A file gets another path, and what was there goes.
    Rename(String, String),
    /// A file loses its path.
    Remove(String),
    /// A folder's entries are synced.
    SyncDir(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::MakeDir(path) => write!(f, "mkdir {path}"),
            Event::Create(path) => write!(f, "create {path}"),
            Event::Write(path, len) => write!(f, "write {path} {len}"),
            Event::Truncate(path, len) => write!(f, "truncate {path} {len}"),
            Event::Sync(path) => write!(f, "sync {path}"),
            Event::Rename(from, to) => write!(f, "rename {from} {to}"),
            Event::Remove(path) => write!(f, "remove {path}"),
            Event::SyncDir(path) => write!(f, "sync-dir {path}"),
        }
    }
}

/// What a medium may hold after a power cut.
#[derive(Debug, Clone)]
pub struct Image {
    /// Which of the unsynced changes it has, for messages.
    pub what: String,
    /// The files.
    pub files: MemStorage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Node {
    Dir,
    File(usize),
}

/// A file's bytes, whatever its path.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    pub(super) now: Vec<u8>,
    synced: Vec<u8>,
    /// Changes since it was synced, in order.
    unsynced: Vec<Change>,
}

/// How it came about, for messages, and the bytes.
type ContentState = (String, Vec<u8>);

#[derive(Debug, Clone)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Resize(usize),
}

#[derive(Debug, Clone, Default)]
pub(super) struct Medium {
    pub(super) contents: Vec<Content>,
    pub(super) entries: BTreeMap<String, Node>,
    synced: BTreeMap<String, Node>,
    /// For each path, what stood there after each change since its folder was synced.
    unsynced: BTreeMap<String, Vec<Option<Node>>>,
    pub(super) events: Vec<Event>,
}

impl Medium {
    /// A medium that holds `files`, all synced.
    pub(super) fn holding(files: &MemStorage) -> Medium {
        let mut medium = Medium::default();
        for (path, bytes) in files.files_now() {
            let content = Content { now: bytes.to_vec(), synced: bytes.to_vec(), unsynced: vec![] };
            medium.entries.insert(path.clone(), Node::File(medium.contents.len()));
            medium.contents.push(content);
            let mut dir = layout::parent(&path);
            while dir != layout::ROOT {
                medium.entries.insert(dir.to_owned(), Node::Dir);
                dir = layout::parent(dir);
            }
        }
        medium.synced = medium.entries.clone();
        medium
    }

    /// Carries out `event`; `bytes` and `offset` are a write's.
    pub(super) fn apply(&mut self, event: Event, offset: usize, bytes: &[u8]) {
        match &event {
            Event::MakeDir(path) => self.set_entry(path, Some(Node::Dir)),
            Event::Create(path) => {
                self.set_entry(path, Some(Node::File(self.contents.len())));
                self.contents.push(Content::default());
            }
            Event::Write(path, _) => {
                self.content(path).change(Change::Write { offset, bytes: bytes.to_vec() });
            }
            Event::Truncate(path, len) => {
                self.content(path).change(Change::Resize(*len as usize));
            }
            Event::Sync(path) => {
                let content = self.content(path);
                content.synced = content.now.clone();
                content.unsynced.clear();
            }
            Event::Rename(from, to) => {
                let node = self.entries.get(from).copied();
                self.set_entry(from, None);
                self.set_entry(to, node);
            }
            Event::Remove(path) => self.set_entry(path, None),
            Event::SyncDir(dir) => {
                let changed: Vec<String> = self
                    .unsynced
                    .keys()
                    .filter(|path| layout::parent(path) == dir)
                    .cloned()
                    .collect();
                for path in changed {
                    self.unsynced.remove(&path);
                    match self.entries.get(&path) {
                        Some(node) => self.synced.insert(path, *node),
                        None => self.synced.remove(&path),
                    };
                }
            }
        }
        self.events.push(event);
    }

    /// What a power cut may leave: every combination of unsynced changes if there are at most `limit`, else a sample of `limit` that has
    /// the extremes, each change alone, and all but each.
    pub(super) fn images(&self, limit: usize) -> Vec<Image> {
        let (entries, contents) = (self.entry_states(), self.content_states());
        let sizes: Vec<usize> = entries
            .iter()
            .map(|(_, states)| states.len())
            .chain(contents.iter().map(|(_, states)| states.len()))
            .collect();
        let mut images = Vec::new();
        for choice in choices(&sizes, entries.len(), limit) {
            let mut nodes = self.synced.clone();
            let mut what = String::new();
            for ((path, states), &state) in entries.iter().zip(&choice) {
                what += &format!("{path} {state}/{}; ", states.len() - 1);
                match states[state] {
                    Some(node) => nodes.insert((*path).clone(), node),
                    None => nodes.remove(*path),
                };
            }
            let mut bytes: BTreeMap<usize, &[u8]> = BTreeMap::new();
            for ((at, states), &state) in contents.iter().zip(&choice[entries.len()..]) {
                what += &format!("file {at} {}; ", states[state].0);
                bytes.insert(*at, &states[state].1);
            }
            let files = MemStorage::new();
            for (path, node) in &nodes {
                let mut dir = layout::parent(path);
                while dir != layout::ROOT && nodes.get(dir) == Some(&Node::Dir) {
                    dir = layout::parent(dir);
                }
                if let (Node::File(at), layout::ROOT) = (node, dir) {
                    files.insert(path, bytes.get(at).copied().unwrap_or(&self.contents[*at].now));
                }
            }
            images.push(Image { what, files });
        }
        images
    }

    /// How many combinations [`Medium::images`] chooses from.
    pub(super) fn possible_images(&self) -> Option<usize> {
        let entries = self.entry_states().into_iter().map(|(_, states)| states.len());
        let contents = self.content_states().into_iter().map(|(_, states)| states.len());
        entries.chain(contents).try_fold(1usize, |product, size| product.checked_mul(size))
    }

    /// What each entry may be that was changed: 0 is the synced state, the last the newest.
    fn entry_states(&self) -> Vec<(&String, Vec<Option<Node>>)> {
        let states = |(path, later): (_, &Vec<Option<Node>>)| {
            let mut states = vec![self.synced.get(path).copied()];
            for state in later {
                if states.last() != Some(state) {
                    states.push(*state);
                }
            }
            (path, states)
        };
        self.unsynced.iter().map(states).collect()
    }

    /// The same for each file whose bytes were changed.
    fn content_states(&self) -> Vec<(usize, Vec<ContentState>)> {
        let changed = self.contents.iter().enumerate();
        let changed = changed.filter(|(_, content)| !content.unsynced.is_empty());
        changed.map(|(at, content)| (at, content.states())).collect()
    }

    pub(super) fn file(&self, path: &str) -> Option<&Content> {
        match self.entries.get(path) {
            Some(Node::File(at)) => Some(&self.contents[*at]),
            _ => None,
        }
    }

    fn content(&mut self, path: &str) -> &mut Content {
        match self.entries.get(path) {
            Some(Node::File(at)) => &mut self.contents[*at],
            _ => panic!("BUG: no file at {path}"),
        }
    }

    fn set_entry(&mut self, path: &str, node: Option<Node>) {
        match node {
            Some(node) => self.entries.insert(path.to_owned(), node),
            None => self.entries.remove(path),
        };
        self.unsynced.entry(path.to_owned()).or_default().push(node);
    }
}

impl Content {
    fn change(&mut self, change: Change) {
        change.apply(&mut self.now, usize::MAX, false);
        self.unsynced.push(change);
    }

    /// Every state that is considered, the synced one first, the newest last: changes lost from some point on, the last of them torn at
    /// several places, earlier ones lost while later ones arrived, the length arrived and the bytes not.
    fn states(&self) -> Vec<ContentState> {
        let mut states: Vec<ContentState> = vec![("as synced".to_owned(), self.synced.clone())];
        let mut before = self.synced.clone();
        for (at, change) in self.unsynced.iter().enumerate() {
            let len = change.len();
            for kept in [1, len / 2, len.saturating_sub(1), 512, 4096] {
                if kept > 0 && kept < len {
                    let mut bytes = before.clone();
                    change.apply(&mut bytes, kept, false);
                    states.push((format!("change {at} torn after {kept}"), bytes));
                    let mut bytes = before.clone();
                    change.apply(&mut bytes, kept, true);
                    states.push((format!("change {at} without its first {kept}"), bytes));
                }
            }
            if at + 1 < self.unsynced.len() {
                let mut bytes = before.clone();
                self.unsynced[at + 1].apply(&mut bytes, usize::MAX, false);
                states.push((format!("change {} without {at}", at + 1), bytes));
            }
            change.apply(&mut before, usize::MAX, false);
            states.push((format!("changes up to {at}"), before.clone()));
        }
        let mut zeros = self.synced.clone();
        zeros.resize(self.now.len(), 0);
        states.insert(1, ("its length alone".to_owned(), zeros));
        let mut seen = BTreeSet::new();
        states.retain(|(_, bytes)| seen.insert(bytes.clone()) || *bytes == self.now);
        // The newest state stands last, and once.
        let last = states.len() - 1;
        let mut at = 0;
        states.retain(|(_, bytes)| {
            at += 1;
            at - 1 == last || *bytes != self.now
        });
        states
    }
}

impl Change {
    fn len(&self) -> usize {
        match self {
            Change::Write { bytes, .. } => bytes.len(),
            Change::Resize(_) => 0,
        }
    }

    /// Makes the change, of a write the first `kept` bytes alone, or all but those.
    fn apply(&self, content: &mut Vec<u8>, kept: usize, all_but: bool) {
        match self {
            Change::Write { offset, bytes } => {
                let kept = kept.min(bytes.len());
                let (from, to) = if all_but { (kept, bytes.len()) } else { (0, kept) };
                content.resize(content.len().max(offset + to), 0);
                content[offset + from..offset + to].copy_from_slice(&bytes[from..to]);
            }
            Change::Resize(len) => content.resize(*len, 0),
        }
    }
}

/// Vectors of one number below each of `sizes`, of which the first `entries` are of entries: all of them, or a sample.
fn choices(sizes: &[usize], entries: usize, limit: usize) -> Vec<Vec<usize>> {
    let all = sizes.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
    if let Some(all) = all.filter(|all| *all <= limit) {
        return (0..all)
            .map(|mut number| {
                let digit = |size: &usize| {
                    let digit = number % size;
                    number /= size;
                    digit
                };
                sizes.iter().map(digit).collect()
            })
            .collect();
    }
    let oldest = vec![0; sizes.len()];
    let newest: Vec<usize> = sizes.iter().map(|size| size - 1).collect();
    let entries_alone = [&newest[..entries], &oldest[entries..]].concat();
    let contents_alone = [&oldest[..entries], &newest[entries..]].concat();
    let mut seen = BTreeSet::new();
    let mut chosen = Vec::new();
    let mut choose = |choice: Vec<usize>| {
        if chosen.len() < limit && seen.insert(choice.clone()) {
            chosen.push(choice);
        }
    };
    for choice in [&oldest, &newest, &entries_alone, &contents_alone] {
        choose(choice.clone());
    }
    for (at, &size) in sizes.iter().enumerate() {
        for state in 0..size {
            for others in [&newest, &oldest] {
                let mut choice = others.clone();
                choice[at] = state;
                choose(choice);
            }
        }
    }
    // A linear congruential generator with a fixed seed: the sample is the same in every run.
    let mut random = 0x2545_f491_4f6c_dd1du64;
    for _ in 0..2 * limit {
        choose(
            sizes
                .iter()
                .map(|&size| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (random >> 33) as usize % size
                })
                .collect(),
        );
    }
    chosen
}
