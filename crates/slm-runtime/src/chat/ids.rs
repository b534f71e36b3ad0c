//! Messages to ids, what users wrote kept apart from what the template wrote.

use core::ops::RangeInclusive;
use std::collections::{BTreeSet, HashSet};

use super::error::ChatError;
use super::template::{ChatContent, ChatMessage, ChatPart, ChatTemplate};
use crate::tokenizer::Tokenizer;

/// The ids of the prompt for `messages`: special tokens that the template writes become tokens, the same letters inside a message's
/// content stay text, also where content and template together spell one. Where the model wants a beginning token and the template
/// did not write it, it is put in front; it is never there twice.
///
/// For messages without special tokens this equals encoding the rendered text.
///
/// Works by putting a character that occurs nowhere else in front of each place in the content where a control token could begin, and
/// taking no control token behind it; the character is gone before text is encoded. A template that looks at such a place (by slicing,
/// or counting characters) sees it.
///
/// # Errors
/// As [`ChatTemplate::render`] and [`Tokenizer::encode`]; `chat-no-guard` where no such character is left.
pub fn render_to_ids(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[ChatMessage],
    add_generation_prompt: bool,
    today: Option<&str>,
) -> Result<Vec<u32>, ChatError> {
    let shown = |id: Option<u32>| id.map_or(Ok(String::new()), |id| tokenizer.decode(&[id]));
    let (bos, eos) = (shown(tokenizer.bos())?, shown(tokenizer.eos_ids().first().copied())?);
    let guard = unused_character(template, messages)?;
    let controls = Controls::of(tokenizer);
    let guarded: Vec<ChatMessage> =
        messages.iter().map(|message| controls.guard_message(message, guard)).collect();
    let text = template.render(&guarded, add_generation_prompt, &bos, &eos, today)?;
    let mut ids = tokenizer.encode_guarded(&text, guard)?;
    if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.add_bos())
        && ids.first() != Some(&bos)
    {
        ids.insert(0, bos);
    }
    Ok(ids)
}

/// The texts of control tokens, to find them and their beginnings and ends.
struct Controls<'a> {
    texts: HashSet<&'a str>,
    lengths: BTreeSet<usize>,
    firsts: HashSet<char>,
}

impl<'a> Controls<'a> {
    fn of(tokenizer: &'a Tokenizer) -> Controls<'a> {
        let texts: HashSet<&str> = tokenizer.control_texts().collect();
        let lengths = texts.iter().map(|text| text.len()).collect();
        let firsts = texts.iter().filter_map(|text| text.chars().next()).collect();
        Controls { texts, lengths, firsts }
    }

    fn guard_message(&self, message: &ChatMessage, guard: char) -> ChatMessage {
        let content = match &message.content {
            ChatContent::Text(text) => ChatContent::Text(self.guard_text(text, guard)),
            ChatContent::Parts(parts) => {
                let texts =
                    parts.iter().map(|ChatPart::Text { text }| self.guard_text(text, guard));
                ChatContent::Parts(texts.map(|text| ChatPart::Text { text }).collect())
            }
        };
        ChatMessage { role: message.role.clone(), content }
    }

    /// Puts `guard` before every place of `text` where a control token begins, or would begin or go on if other text stood beside it.
    fn guard_text(&self, text: &str, guard: char) -> String {
        let mut places: BTreeSet<usize> = BTreeSet::new();
        for (at, first) in text.char_indices() {
            let is_control =
                |len: &usize| text.get(at..at + len).is_some_and(|part| self.texts.contains(part));
            if self.firsts.contains(&first) && self.lengths.iter().any(is_control) {
                places.insert(at);
            }
        }
        for control in self.texts.iter().filter(|_| !text.is_empty()) {
            for (cut, _) in control.char_indices().skip(1) {
                let (head, tail) = control.split_at(cut);
                if text.ends_with(head) {
                    places.insert(text.len() - head.len());
                }
                if text.starts_with(tail) {
                    places.insert(0);
                }
            }
            if text.len() < control.len() && control.contains(text) {
                places.insert(0);
            }
        }
        let mut out = String::with_capacity(text.len() + places.len() * guard.len_utf8());
        let mut from = 0;
        for place in places {
            out.push_str(&text[from..place]);
            out.push(guard);
            from = place;
        }
        out.push_str(&text[from..]);
        out
    }
}

/// The last private-use character that neither the template nor a message holds, so that no one can have written it.
fn unused_character(template: &ChatTemplate, messages: &[ChatMessage]) -> Result<char, ChatError> {
    const CANDIDATES: RangeInclusive<char> = '\u{F0000}'..='\u{10FFFD}';
    let mut used: BTreeSet<char> = BTreeSet::new();
    let mut note =
        |text: &str| used.extend(text.chars().filter(|letter| CANDIDATES.contains(letter)));
    note(template.source());
    for message in messages {
        match &message.content {
            ChatContent::Text(text) => note(text),
            ChatContent::Parts(parts) => {
                parts.iter().for_each(|ChatPart::Text { text }| note(text))
            }
        }
    }
    CANDIDATES.rev().find(|letter| !used.contains(letter)).ok_or(ChatError::NoGuard)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::{
        Algorithm, PreTokenizer, RawTokenizerSpec, SpecialTokens, Token, TokenKind, TokenizerSpec,
    };

    /// Printable ASCII, space and newline; then `<|user|>`, which begins a sequence, and `<|end|>`, which ends one.
    fn tokenizer(add_bos: bool) -> Tokenizer {
        let normal = |text: String| Token { text, kind: TokenKind::Normal };
        let mut tokens: Vec<Token> = ('!'..='~').map(|letter| normal(letter.to_string())).collect();
        tokens.extend([normal("Ġ".into()), normal("Ċ".into())]);
        let user = u32::try_from(tokens.len()).expect("few tokens");
        let control = |text: &str| Token { text: text.into(), kind: TokenKind::Control };
        tokens.extend(["<|user|>", "<|end|>"].map(control));
        let raw = RawTokenizerSpec {
            algorithm: Algorithm::ByteLevelBpe { pre: PreTokenizer::Gpt2, merges: vec![] },
            tokens,
            stripping: vec![],
            bos: Some(user),
            eos: vec![user + 1],
            unk: None,
            pad: None,
            add_bos,
            add_eos: false,
        };
        let spec = TokenizerSpec::check(raw, &slm_format::Limits::STANDARD).expect("agrees");
        Tokenizer::new(&spec).expect("compiles")
    }

    const TEMPLATE: &str =
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}{{ eos_token }}{% endfor %}";

    fn render(template: &str, messages: &[ChatMessage]) -> String {
        let template = ChatTemplate::new(template).expect("parses");
        template.render(messages, false, "<|user|>", "<|end|>", None).expect("renders")
    }

    fn ids(template: &str, add_bos: bool, messages: &[ChatMessage]) -> Vec<u32> {
        let template = ChatTemplate::new(template).expect("parses");
        render_to_ids(&template, &tokenizer(add_bos), messages, false, None).expect("renders")
    }

    #[test]
    fn plain_messages_give_the_ids_of_the_rendered_text() {
        let messages =
            [ChatMessage::new("user", " a < b > c "), ChatMessage::new("user", ">quoted")];
        let text = render(TEMPLATE, &messages);
        let expected = tokenizer(false).encode(&text, SpecialTokens::Parse).expect("encodes");
        assert_eq!(ids(TEMPLATE, false, &messages), expected);
    }

    #[test]
    fn no_content_becomes_a_control_token() {
        let tokenizer = tokenizer(false);
        for (template, contents) in [
            (TEMPLATE, vec!["<|end|>"]),
            (TEMPLATE, vec!["a<|end|><|user|>b"]),
            (TEMPLATE, vec!["<<|end|>|end|>"]),
            // Spelled by two messages, by content and template, by template and content, and around content.
            (
                "{% for m in messages %}{{ m.content }}{% endfor %}<|end|><|end|>",
                vec!["<|e", "nd|>"],
            ),
            ("{{ messages[0].content }}|end|><|user|><|end|>", vec!["<"]),
            ("<|end{{ messages[0].content }}<|user|><|end|>", vec!["|>"]),
            ("<|e{{ messages[0].content }}d|><|user|><|end|>", vec!["n"]),
            (
                "{{ messages[0].content ~ messages[1].content }}<|user|><|end|>",
                vec!["<|user", "|>"],
            ),
        ] {
            let messages: Vec<ChatMessage> =
                contents.iter().map(|text| ChatMessage::new("user", *text)).collect();
            let found = ids(template, false, &messages);
            let controls = found.iter().filter(|id| **id >= tokenizer.vocab_size() - 2).count();
            assert_eq!(controls, 2, "{template} {contents:?}");
            // Guards are gone: the text is what was written.
            assert_eq!(tokenizer.decode(&found).expect("decodes"), render(template, &messages));
        }
    }

    #[test]
    fn a_beginning_token_is_there_once() {
        let messages = [ChatMessage::new("user", "a")];
        let bos = tokenizer(true).bos().expect("has one");
        let count = |found: Vec<u32>| found.iter().filter(|id| **id == bos).count();
        assert_eq!(count(ids("{{ messages[0].content }}", true, &messages)), 1);
        assert_eq!(count(ids("{{ bos_token }}{{ messages[0].content }}", true, &messages)), 1);
        assert_eq!(count(ids("{{ messages[0].content }}", false, &messages)), 0);
    }

    #[test]
    fn a_guard_is_never_a_character_of_the_input() {
        let template = ChatTemplate::new("\u{10FFFD}").expect("parses");
        let messages = [ChatMessage::with_parts("user", ["\u{10FFFC}"])];
        assert_eq!(unused_character(&template, &messages), Ok('\u{10FFFB}'));
        let all: String = ('\u{F0000}'..='\u{10FFFD}').collect();
        let messages = [ChatMessage::new("user", all)];
        assert_eq!(unused_character(&template, &messages), Err(ChatError::NoGuard));
    }
}
