//! A document that can be bent in one place and written in both forms.

/// A value as it is written, the same in TOML and JSON, or a table, or a list of tables.
#[derive(Clone)]
pub enum Value {
    Raw(String),
    Table(Table),
    Tables(Vec<Table>),
}

/// Keys in the order written; one may stand twice.
#[derive(Clone, Default)]
pub struct Table(pub Vec<(String, Value)>);

/// A manifest with every field, as raw values.
pub fn full() -> Table {
    let digest = |digit: &str| format!("\"sha256:{}\"", digit.repeat(64));
    let adapter = |name: &str, order: u32, id: &str, weight: &str, targets: &str| {
        table(&[
            ("name", format!("\"{name}\"")),
            ("adapter_id", digest(id)),
            ("file_hash", digest("4")),
            ("load_order", order.to_string()),
            ("merge_weight", weight.to_owned()),
            ("targets", targets.to_owned()),
            ("rank", "8".to_owned()),
            ("nnz", "9216".to_owned()),
        ])
    };
    let quantization = |dtype: &str, scheme: &str, block_size: u32| {
        table(&[
            ("dtype", format!("\"{dtype}\"")),
            ("scheme", format!("\"{scheme}\"")),
            ("block_size", block_size.to_string()),
            ("tensors", "61".to_owned()),
        ])
    };
    let runtime = table(&[
        ("name", "\"slm\"".to_owned()),
        ("version", "\"0.1.0\"".to_owned()),
        ("numerics", "1".to_owned()),
    ]);
    let provenance = table(&[
        ("base_file_hash", digest("7")),
        ("base_source_hash", digest("8")),
        ("tokenizer_file_hash", digest("9")),
    ]);
    let adapters = vec![
        adapter(
            "medical-domain",
            1,
            "3",
            "0.7",
            r#"["blk.0.attn_v.weight", "blk.0.attn_q.weight"]"#,
        ),
        adapter("safety-filter", 2, "5", "0.5", r#"["blk.1.ffn_up.weight"]"#),
    ];
    let mut document = table(&[
        ("base_model_hash", digest("1")),
        ("tokenizer_id", digest("2")),
        ("timestamp_utc", "\"2026-07-21T00:00:00Z\"".to_owned()),
        ("plan", digest("6")),
        ("evaluation", digest("a")),
    ]);
    document.0.extend([
        (
            "quantization".to_owned(),
            Value::Tables(vec![quantization("int4", "Q4_1", 32), quantization("f32", "F32", 1)]),
        ),
        ("runtime".to_owned(), Value::Table(runtime)),
        ("provenance".to_owned(), Value::Table(provenance)),
        ("adapters".to_owned(), Value::Tables(adapters)),
    ]);
    document
}

impl Table {
    /// The table at the start of a path such as `adapters.1.rank`, and the last part of the path.
    fn at<'a>(&mut self, path: &'a str) -> (&mut Table, &'a str) {
        let Some((first, rest)) = path.split_once('.') else { return (self, path) };
        let (_, value) = self.0.iter_mut().find(|(key, _)| key == first).expect("no such table");
        match value {
            Value::Raw(_) => panic!("{first} is no table"),
            Value::Table(table) => table.at(rest),
            Value::Tables(tables) => {
                let (index, rest) = rest.split_once('.').expect("an index and a key");
                tables[index.parse::<usize>().expect("an index")].at(rest)
            }
        }
    }

    pub fn set(mut self, path: &str, raw: &str) -> Table {
        let (table, key) = self.at(path);
        let (_, value) = table.0.iter_mut().find(|(name, _)| name == key).expect("no such key");
        *value = Value::Raw(raw.to_owned());
        self
    }

    pub fn add(mut self, path: &str, raw: &str) -> Table {
        let (table, key) = self.at(path);
        table.0.push((key.to_owned(), Value::Raw(raw.to_owned())));
        self
    }

    pub fn remove(mut self, path: &str) -> Table {
        let (table, key) = self.at(path);
        let before = table.0.len();
        table.0.retain(|(name, _)| name != key);
        assert!(table.0.len() < before, "{path} was not there");
        self
    }

    pub fn toml(&self) -> String {
        let mut text = String::new();
        self.lines(&mut text);
        for (key, value) in &self.0 {
            let (tables, open, close) = match value {
                Value::Raw(_) => continue,
                Value::Table(table) => (core::slice::from_ref(table), "[", "]"),
                Value::Tables(tables) => (tables.as_slice(), "[[", "]]"),
            };
            for table in tables {
                text.push_str(&format!("\n{open}{key}{close}\n"));
                table.lines(&mut text);
            }
        }
        text
    }

    pub fn json(&self) -> String {
        let fields = self.0.iter().map(|(key, value)| {
            let value = match value {
                Value::Raw(raw) => raw.clone(),
                Value::Table(table) => table.json(),
                Value::Tables(tables) => {
                    format!("[{}]", tables.iter().map(Table::json).collect::<Vec<_>>().join(", "))
                }
            };
            format!("\"{key}\": {value}")
        });
        format!("{{{}}}", fields.collect::<Vec<_>>().join(",\n"))
    }

    fn lines(&self, text: &mut String) {
        for (key, value) in &self.0 {
            if let Value::Raw(raw) = value {
                text.push_str(&format!("{key} = {raw}\n"));
            }
        }
    }
}

fn table(fields: &[(&str, String)]) -> Table {
    Table(fields.iter().map(|(key, raw)| ((*key).to_owned(), Value::Raw(raw.clone()))).collect())
}
