//! The template of a model, ready to render.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};
use slm_format::gguf::Metadata;

use super::error::ChatError;
use super::python::{Moment, Raised, print, raise_exception, tojson};

/// Longest template source, in bytes.
const MAX_SOURCE_BYTES: u64 = 1 << 20;

/// Longest rendered prompt, in bytes.
const MAX_OUTPUT_BYTES: u64 = 64 << 20;

/// Steps of the template engine for one prompt; a long conversation takes a few hundred a message.
const FUEL: u64 = 20_000_000;

const NAME: &str = "chat_template";

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    /// Who speaks: `system`, `user`, `assistant`, `tool`.
    pub role: String,
    /// What is said.
    pub content: ChatContent,
}

/// What is said, whole or in parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChatContent {
    /// One text.
    Text(String),
    /// Texts that a template may treat one by one; where it cannot, they are joined by newlines.
    Parts(Vec<ChatPart>),
}

/// One part of a message, as templates see it: `{"type": "text", "text": …}`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChatPart {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
}

impl ChatMessage {
    /// A message with one text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> ChatMessage {
        ChatMessage { role: role.into(), content: ChatContent::Text(content.into()) }
    }

    /// A message in parts.
    pub fn with_parts<T: Into<String>>(
        role: impl Into<String>,
        parts: impl IntoIterator<Item = T>,
    ) -> ChatMessage {
        let parts = parts.into_iter().map(|text| ChatPart::Text { text: text.into() }).collect();
        ChatMessage { role: role.into(), content: ChatContent::Parts(parts) }
    }
}

/// A parsed chat template.
///
/// ```
/// use slm_runtime::chat::{ChatMessage, ChatTemplate};
///
/// let template = ChatTemplate::new(
///     "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}{{ eos_token }}{% endfor %}\
///      {% if add_generation_prompt %}<|assistant|>{% endif %}",
/// )?;
/// let text = template.render(&[ChatMessage::new("user", " Hi ")], true, "<s>", "</s>", None)?;
/// assert_eq!(text, "<|user|>Hi</s><|assistant|>");
/// # Ok::<(), slm_runtime::chat::ChatError>(())
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    takes: Takes,
}

/// The forms of content that a template shows in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Takes {
    text: bool,
    parts: bool,
}

impl ChatTemplate {
    /// Parses `source`, as `chat_template` holds it, and finds out which forms of content it takes by rendering a message of each.
    ///
    /// # Errors
    /// `chat-template-syntax` with the line, `limit-exceeded` over 1 MiB.
    pub fn new(source: &str) -> Result<ChatTemplate, ChatError> {
        let found = source.len() as u64;
        if found > MAX_SOURCE_BYTES {
            return Err(ChatError::TooLarge {
                field: "chat template",
                found,
                limit: MAX_SOURCE_BYTES,
            });
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("BUG: the fixed syntax is refused"));
        environment.set_fuel(Some(FUEL));
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_formatter(print);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", tojson);
        environment.add_template_owned(NAME, without_generation_tags(source)).map_err(|error| {
            let (line, message) = place(&error);
            ChatError::Syntax { line, message }
        })?;
        let mut template = ChatTemplate {
            environment,
            source: source.to_owned(),
            takes: Takes { text: true, parts: true },
        };
        template.takes = template.probe();
        Ok(template)
    }

    /// The template of a GGUF file.
    ///
    /// # Errors
    /// `chat-no-template` where the file has none, else as [`ChatTemplate::new`].
    pub fn from_gguf(metadata: &Metadata<'_>) -> Result<ChatTemplate, ChatError> {
        ChatTemplate::new(metadata.str("tokenizer.chat_template")?.ok_or(ChatError::NoTemplate)?)
    }

    /// The template in a Hugging Face `tokenizer_config.json`: a text, or among named ones that named `default`.
    ///
    /// # Errors
    /// `chat-no-template` where there is none, `chat-bad-json`, else as [`ChatTemplate::new`].
    pub fn from_tokenizer_config(json: &[u8]) -> Result<ChatTemplate, ChatError> {
        let config: serde_json::Value = serde_json::from_slice(json)
            .map_err(|error| ChatError::Json { message: error.to_string() })?;
        let field = config.get("chat_template");
        let named = field.and_then(serde_json::Value::as_array).and_then(|list| {
            let default = list.iter().find(|entry| {
                entry.get("name").and_then(serde_json::Value::as_str) == Some("default")
            })?;
            default.get("template")?.as_str()
        });
        ChatTemplate::new(
            field.and_then(serde_json::Value::as_str).or(named).ok_or(ChatError::NoTemplate)?,
        )
    }

    /// The source, as it was given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The prompt for `messages`. `add_generation_prompt` ends it where the model's answer begins; `bos` and `eos` are the texts of these
    /// tokens. `today`, as `2026-11-29` or `2026-11-29T08:30:00`, is what `strftime_now` tells; without it that function is undefined, so
    /// that a template with a date of its own uses that. The same inputs give the same text, always.
    ///
    /// Special tokens inside a message's content come out as they went in; [`super::render_to_ids`] keeps them text.
    ///
    /// # Errors
    /// `chat-template-raised` with the template's words, `chat-no-date`, `chat-bad-date`, `chat-bad-role`, `chat-template-failed`,
    /// `limit-exceeded` over 64 MiB.
    pub fn render(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
        bos: &str,
        eos: &str,
        today: Option<&str>,
    ) -> Result<String, ChatError> {
        let today = today.map(Moment::parse).transpose()?;
        for message in messages {
            check_role(&message.role)?;
        }
        let messages: Vec<ChatMessage> = messages.iter().map(|message| self.fit(message)).collect();
        self.run(&messages, add_generation_prompt, bos, eos, today)
    }

    fn run(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
        bos: &str,
        eos: &str,
        today: Option<Moment>,
    ) -> Result<String, ChatError> {
        let messages: Vec<Value> = messages.iter().map(as_value).collect();
        let mut context = vec![
            ("messages", Value::from(messages)),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("bos_token", Value::from(bos)),
            ("eos_token", Value::from(eos)),
        ];
        if let Some(moment) = today {
            let clock = Value::from_function(move |format: String| moment.format(&format));
            context.push(("strftime_now", clock));
        }
        let context = Value::from_pairs(context);
        let template = self
            .environment
            .get_template(NAME)
            .expect("BUG: the template was added under this name");
        let mut out = Bounded { bytes: Vec::new(), is_over: false };
        match template.render_captured_to(context, &mut out) {
            Ok(_) => Ok(String::from_utf8(out.bytes).expect("BUG: rendered text is not UTF-8")),
            Err(_) if out.is_over => {
                let found = out.bytes.len() as u64;
                Err(ChatError::TooLarge {
                    field: "rendered prompt",
                    found,
                    limit: MAX_OUTPUT_BYTES,
                })
            }
            Err(error) => Err(failure(&error, today.is_none())),
        }
    }

    /// The message in a form that the template takes.
    fn fit(&self, message: &ChatMessage) -> ChatMessage {
        let content = match &message.content {
            ChatContent::Parts(parts) if !self.takes.parts => {
                let texts: Vec<&str> =
                    parts.iter().map(|ChatPart::Text { text }| text.as_str()).collect();
                ChatContent::Text(texts.join("\n"))
            }
            ChatContent::Text(text) if !self.takes.text => {
                ChatContent::Parts(vec![ChatPart::Text { text: text.clone() }])
            }
            content => content.clone(),
        };
        ChatMessage { role: message.role.clone(), content }
    }

    fn probe(&self) -> Takes {
        const PROBE: &str = "slm-probe";
        let today = Moment::parse("2000-01-01").ok();
        let show = |message: ChatMessage| self.run(&[message], true, "", "", today).ok();
        let text = show(ChatMessage::new("user", PROBE)).filter(|shown| shown.contains(PROBE));
        let parts =
            show(ChatMessage::with_parts("user", [PROBE])).filter(|shown| shown.contains(PROBE));
        match (text, parts) {
            // Parts that print as a list, brackets and all, are not taken.
            (Some(text), parts) => Takes { text: true, parts: parts == Some(text) },
            (None, Some(_)) => Takes { text: false, parts: true },
            (None, None) => Takes { text: true, parts: false },
        }
    }
}

fn as_value(message: &ChatMessage) -> Value {
    let content = match &message.content {
        ChatContent::Text(text) => Value::from(text.as_str()),
        ChatContent::Parts(parts) => parts
            .iter()
            .map(|ChatPart::Text { text }| Value::from_pairs([("type", "text"), ("text", text)]))
            .collect::<Vec<Value>>()
            .into(),
    };
    Value::from_pairs([("role", Value::from(message.role.as_str())), ("content", content)])
}

/// Refuses a role that could write markup: some templates build tokens out of it, as `<|user|>`.
pub(crate) fn check_role(role: &str) -> Result<(), ChatError> {
    let is_word =
        role.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    if is_word && (1..=64).contains(&role.len()) {
        return Ok(());
    }
    Err(ChatError::BadRole { found: role.chars().take(64).collect() })
}

/// Text with a bound.
struct Bounded {
    bytes: Vec<u8>,
    is_over: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        if (self.bytes.len() as u64).saturating_add(buffer.len() as u64) > MAX_OUTPUT_BYTES {
            self.is_over = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(buffer);
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn failure(error: &Error, has_no_date: bool) -> ChatError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = source {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return ChatError::Raised { message: message.clone() };
        }
        source = inner.source();
    }
    let (line, message) = place(error);
    if has_no_date && error.kind() == ErrorKind::UnknownFunction && message.contains("strftime_now")
    {
        return ChatError::NoDate;
    }
    ChatError::Failed { line, message }
}

fn place(error: &Error) -> (u64, String) {
    let line = error.line().map_or(0, |line| line as u64);
    (
        line,
        error.detail().map_or_else(
            || error.kind().to_string(),
            |detail| format!("{}: {detail}", error.kind()),
        ),
    )
}

/// Replaces `{% generation %}` and `{% endgeneration %}`, which only tell a trainer which part the model wrote, by tags without effect.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        let inner = &tag[2..tag.len() - 2];
        match inner.trim_matches(|character: char| {
            character.is_whitespace() || character == '-' || character == '+'
        }) {
            word @ ("generation" | "endgeneration") => {
                out.push_str(&tag.replacen(
                    word,
                    if word == "generation" { "if true" } else { "endif" },
                    1,
                ));
            }
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use slm_format::Coded;

    fn render(
        source: &str,
        messages: &[ChatMessage],
        today: Option<&str>,
    ) -> Result<String, ChatError> {
        ChatTemplate::new(source)?.render(messages, false, "<s>", "</s>", today)
    }

    fn code(source: &str, messages: &[ChatMessage]) -> &'static str {
        render(source, messages, None).map_or_else(|error| error.code(), |_| "accepted")
    }

    #[test]
    fn a_template_that_refuses_says_so_in_its_words() {
        let source =
            "{% if messages[0].role != 'user' %}{{ raise_exception('<alternate>') }}{% endif %}ok";
        let raised = render(source, &[ChatMessage::new("system", "x")], None).expect_err("raises");
        assert_eq!(raised, ChatError::Raised { message: "<alternate>".into() });
        let user = [ChatMessage::new("user", "x")];
        assert_eq!(render(source, &user, None).as_deref(), Ok("ok"));
        // Also from inside a macro in a loop.
        let nested = "{% macro m() %}{{ raise_exception('no') }}{% endmacro %}\
                      {% for x in messages %}{{ m() }}{% endfor %}";
        assert_eq!(code(nested, &user), "chat-template-raised");
    }

    #[test]
    fn the_clock_is_an_input() {
        let source = "{{ strftime_now('%d %b %Y') }}";
        assert_eq!(render(source, &[], None), Err(ChatError::NoDate));
        assert_eq!(render(source, &[], Some("2024-07-26")).as_deref(), Ok("26 Jul 2024"));
        let refused = render(source, &[], Some("26.7.2024")).expect_err("refused");
        assert_eq!(refused.code(), "chat-bad-date");
        let careful =
            "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}2020{% endif %}";
        assert_eq!(render(careful, &[], None).as_deref(), Ok("2020"));
        assert_eq!(render(careful, &[], Some("2024-07-26")).as_deref(), Ok("2024"));
    }

    #[test]
    fn content_comes_in_the_form_that_the_template_takes() {
        let parts = [ChatMessage::with_parts("user", ["a", "b"])];
        let text = [ChatMessage::new("user", "a")];
        let wants_text = "{{ '[' + messages[0].content + ']' }}";
        let prints = "{{ messages[0].content }}";
        let wants_parts = "{% for part in messages[0].content %}({{ part.text }}){% endfor %}";
        assert_eq!(render(wants_text, &parts, None).as_deref(), Ok("[a\nb]"));
        assert_eq!(render(prints, &parts, None).as_deref(), Ok("a\nb"));
        assert_eq!(render(wants_parts, &parts, None).as_deref(), Ok("(a)(b)"));
        assert_eq!(render(wants_parts, &text, None).as_deref(), Ok("(a)"));
        assert_eq!(render(wants_text, &text, None).as_deref(), Ok("[a]"));
    }

    #[test]
    fn wrong_templates_and_roles_are_refused() {
        let syntax = |source: &str| {
            ChatTemplate::new(source).map_or_else(|error| error.code(), |_| "accepted")
        };
        assert!(matches!(ChatTemplate::new("a\n{% if %}"), Err(ChatError::Syntax { line: 2, .. })));
        assert_eq!(syntax("{% if true %}"), "chat-template-syntax");
        assert_eq!(syntax("{% if true %}{% endif %}"), "accepted");
        assert_eq!(code("{{ 1 + 'a' }}", &[]), "chat-template-failed");
        for role in ["", "user|>", "a b", "user\n"] {
            assert_eq!(code("x", &[ChatMessage::new(role, "")]), "chat-bad-role", "{role:?}");
        }
        assert_eq!(code("x", &[ChatMessage::new("tool_call-1", "")]), "accepted");
        let long = "x".repeat((1 << 20) + 1);
        assert_eq!((syntax(&long), syntax(&long[1..])), ("limit-exceeded", "accepted"));
    }

    #[test]
    fn endless_work_and_output_are_stopped() {
        let inner =
            "{% for b in range(9999) %}{% for c in range(9999) %}BODY{% endfor %}{% endfor %}";
        let body = format!(
            "{{% if messages %}}{{% for a in range(9999) %}}{inner}{{% endfor %}}{{% endif %}}"
        );
        let user = [ChatMessage::new("user", "x")];
        assert_eq!(code(&body.replace("BODY", ""), &user), "chat-template-failed");
        assert_eq!(code(&body.replace("BODY", &"x".repeat(4096)), &user), "limit-exceeded");
    }

    #[test]
    fn templates_are_found_in_configurations() {
        let from = |json: &str| {
            ChatTemplate::from_tokenizer_config(json.as_bytes())
                .map(|template| template.source().to_owned())
        };
        assert_eq!(from(r#"{"chat_template": "a"}"#).as_deref(), Ok("a"));
        let named = r#"{"chat_template": [{"name": "t", "template": "b"}, {"name": "default", "template": "a"}]}"#;
        assert_eq!(from(named).as_deref(), Ok("a"));
        assert_eq!(from("{}"), Err(ChatError::NoTemplate));
        assert_eq!(from("{").expect_err("refused").code(), "chat-bad-json");
    }

    #[test]
    fn generation_tags_keep_their_white_space_control() {
        let source = "a{%- generation -%}b{% endgeneration %}{{ x }}";
        assert_eq!(without_generation_tags(source), "a{%- if true -%}b{% endif %}{{ x }}");
        let other = "{% set generation = 1 %}{%";
        assert_eq!(without_generation_tags(other), other);
    }
}
