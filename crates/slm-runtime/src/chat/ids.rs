//! Messages to ids, what users wrote kept apart from what the template wrote.

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
/// As [`ChatTemplate::render`] and [`Tokenizer::encode`].
pub fn render_to_ids(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[ChatMessage],
    add_generation_prompt: bool,
    today: Option<&str>,
) -> Result<Vec<u32>, ChatError> {
    let shown = |id: Option<u32>| id.map_or(Ok(String::new()), |id| tokenizer.decode(&[id]));
    let (bos, eos) = (shown(tokenizer.bos())?, shown(tokenizer.eos_ids().first().copied())?);
    let guard = unused_character(template, messages);
    let controls: Vec<&str> = tokenizer.control_texts().collect();
    let guarded: Vec<ChatMessage> = messages
        .iter()
        .map(|message| ChatMessage {
            role: message.role.clone(),
            content: guard_content(&message.content, &controls, guard),
        })
        .collect();
    let text = template.render(&guarded, add_generation_prompt, &bos, &eos, today)?;
    let mut ids = tokenizer.encode_guarded(&text, guard)?;
    if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.add_bos())
        && ids.first() != Some(&bos)
    {
        ids.insert(0, bos);
    }
    Ok(ids)
}

fn guard_content(content: &ChatContent, controls: &[&str], guard: char) -> ChatContent {
    match content {
        ChatContent::Text(text) => ChatContent::Text(guard_text(text, controls, guard)),
        ChatContent::Parts(parts) => {
            let guarded = |ChatPart::Text { text }: &ChatPart| ChatPart::Text {
                text: guard_text(text, controls, guard),
            };
            ChatContent::Parts(parts.iter().map(guarded).collect())
        }
    }
}

/// Puts `guard` before every place of `text` where a control token begins, or would begin or go on if other text stood beside it.
fn guard_text(text: &str, controls: &[&str], guard: char) -> String {
    let mut places: Vec<usize> = Vec::new();
    for control in controls.iter().filter(|_| !text.is_empty()) {
        let first = control.chars().next().map_or(1, char::len_utf8);
        let mut from = 0;
        while let Some(found) = text[from..].find(control) {
            places.push(from + found);
            from += found + first;
        }
        for (cut, _) in control.char_indices().skip(1) {
            let (head, tail) = control.split_at(cut);
            if text.ends_with(head) {
                places.push(text.len() - head.len());
            }
            if text.starts_with(tail) {
                places.push(0);
            }
        }
        if text.len() < control.len() && control.contains(text) {
            places.push(0);
        }
    }
    places.sort_unstable();
    places.dedup();
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

/// The first private-use character of plane 16 that neither the template nor a message holds, so that no one can write it.
fn unused_character(template: &ChatTemplate, messages: &[ChatMessage]) -> char {
    let is_used = |character: char| {
        template.source().contains(character)
            || messages.iter().any(|message| match &message.content {
                ChatContent::Text(text) => text.contains(character),
                ChatContent::Parts(parts) => {
                    parts.iter().any(|ChatPart::Text { text }| text.contains(character))
                }
            })
    };
    // 65 534 candidates: a text that holds them all has 262 136 bytes, and then the search goes on through the planes before.
    ('\u{F0000}'..='\u{10FFFD}')
        .rev()
        .find(|&character| !is_used(character))
        .unwrap_or('\u{10FFFF}')
}
