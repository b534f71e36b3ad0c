//! Plots as SVG, readable on light and on dark ground: no ground of their own, text in the reader's colour, lines in middle tones.

use std::fmt::Write as _;

use super::study::{Study, Type};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;

/// Middle tones that a colour-blind reader can tell apart (Okabe and Ito).
const COLOURS: [&str; 7] =
    ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8a8a8a"];

/// The cycles that have a label, and a mark on every line.
const CYCLES: [f64; 7] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#222}.title{font-size:15px;font-weight:600}.frame{fill:none;stroke:#888}\
                     .grid{stroke:#888;stroke-opacity:.25}.line{fill:none;stroke-width:2}\
                     @media (prefers-color-scheme:dark){text{fill:#ddd}}";

/// Points of one name, in one colour.
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
    joined: bool,
}

/// Both axes, and what is drawn.
struct Plot {
    title: String,
    x: String,
    y: String,
    /// Labels at 0, 1, 2 …, where the horizontal axis has names and no numbers.
    categories: Vec<String>,
    series: Vec<Series>,
}

/// A study's plots, with their names.
pub(super) fn all(study: &Study) -> Vec<(&'static str, String)> {
    let model = study.head["model"].as_str().filter(|name| !name.is_empty()).unwrap_or("tiny");
    let names = || study.types.iter().map(|kind| kind.name.clone()).collect::<Vec<_>>();
    let snapshots = study.list("snapshots");
    let cycles = |kind: &Type| Series {
        name: kind.name.clone(),
        points: (1..).map(f64::from).zip(kind.weights("unmerged")).collect(),
        joined: true,
    };
    let cycles_kl = |kind: &Type| Series {
        name: kind.name.clone(),
        points: snapshots.iter().copied().zip(kind.kls("unmerged")).collect(),
        joined: true,
    };
    let ways = |rows: &[(&str, &str)]| -> Vec<Series> {
        let series = |&(name, key): &(&str, &str)| Series {
            name: name.to_owned(),
            points: (0..).map(f64::from).zip(study.types.iter().map(|kind| kind.kl(key))).collect(),
            joined: false,
        };
        rows.iter().map(series).collect()
    };
    let divergence = "KL from the oracle, nats";
    let plots = [
        (
            "cycles-weights",
            Plot {
                title: format!("{model}: merged and unmerged again, weights"),
                x: "cycles".to_owned(),
                y: "error, relative to the clean weights".to_owned(),
                categories: Vec::new(),
                series: study.types.iter().map(cycles).collect(),
            },
        ),
        (
            "cycles-kl",
            Plot {
                title: format!("{model}: merged and unmerged again, logits"),
                x: "cycles".to_owned(),
                y: divergence.to_owned(),
                categories: Vec::new(),
                series: study.types.iter().map(cycles_kl).collect(),
            },
        ),
        (
            "ways",
            Plot {
                title: format!("{model}: one adapter, three ways"),
                x: "type of the base".to_owned(),
                y: divergence.to_owned(),
                categories: names(),
                series: ways(&[
                    ("base alone", "base"),
                    ("overlay", "overlay"),
                    ("merge, requantize", "merge"),
                ]),
            },
        ),
        (
            "order",
            Plot {
                title: format!("{model}: two adapters"),
                x: "type of the base".to_owned(),
                y: divergence.to_owned(),
                categories: names(),
                series: ways(&[
                    ("overlay A, B", "overlay_ab"),
                    ("overlay B, A", "overlay_ba"),
                    ("joint merge", "joint"),
                    ("merge A, then B", "sequential_ab"),
                    ("merge B, then A", "sequential_ba"),
                ]),
            },
        ),
    ];
    plots.into_iter().map(|(name, plot)| (name, plot.svg())).collect()
}

impl Plot {
    fn svg(&self) -> String {
        let values =
            || self.series.iter().flat_map(|series| &series.points).filter(|(_, y)| *y > 0.0);
        let low = values().map(|(_, y)| *y).fold(f64::INFINITY, f64::min).log10();
        let high = values().map(|(_, y)| *y).fold(0.0, f64::max).log10();
        // A little room, so that no point lies on the frame.
        let (low, high) = (low - 0.06 * (high - low) - 0.02, high + 0.06 * (high - low) + 0.02);
        let x_high = values().map(|(x, _)| *x).fold(1.0, f64::max);
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let x_of = |x: f64| match self.categories.len() {
            0 => LEFT + (right - LEFT) * x.log10() / x_high.log10(),
            n => LEFT + (right - LEFT) * (x + 0.5) / n as f64,
        };
        let y_of = |y: f64| bottom - (bottom - TOP) * (y.log10() - low) / (high - low);

        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" \
             aria-label=\"{}\">\n<style>{STYLE}</style>\n",
            escape(&self.title)
        );
        let mut put = |line: String| {
            svg.push_str(&line);
            svg.push('\n');
        };
        put(text(LEFT, 24.0, "start", "title", &self.title));
        for (tick, label) in ticks(low, high) {
            let y = y_of(tick);
            put(format!(
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>"
            ));
            put(text(LEFT - 8.0, y + 4.0, "end", "", &label));
        }
        let marks: Vec<(f64, String)> = match self.categories.is_empty() {
            true => CYCLES.map(|x| (x, x.to_string())).into(),
            false => (0..).map(f64::from).zip(self.categories.iter().cloned()).collect(),
        };
        for (x, label) in marks {
            let x = x_of(x);
            put(format!(
                "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>"
            ));
            put(text(x, bottom + 18.0, "middle", "", &label));
        }
        put(format!(
            "<rect class=\"frame\" x=\"{LEFT}\" y=\"{TOP}\" width=\"{}\" height=\"{}\"/>",
            right - LEFT,
            bottom - TOP
        ));
        put(text((LEFT + right) / 2.0, HEIGHT - 14.0, "middle", "", &self.x));
        let middle = (TOP + bottom) / 2.0;
        put(format!(
            "<text text-anchor=\"middle\" transform=\"translate(18 {middle}) rotate(-90)\">{} (log)</text>",
            escape(&self.y)
        ));
        let n = self.series.len() as f64;
        for (at, series) in self.series.iter().enumerate() {
            let colour = COLOURS[at % COLOURS.len()];
            // Beside each other where several stand on one name.
            let shift = if series.joined { 0.0 } else { 9.0 * (at as f64 - (n - 1.0) / 2.0) };
            let place = |(x, y): &(f64, f64)| (x_of(*x) + shift, y_of(*y));
            let places: Vec<(f64, f64)> =
                series.points.iter().filter(|(_, y)| *y > 0.0).map(place).collect();
            if series.joined {
                let points: Vec<String> =
                    places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
                put(format!(
                    "<polyline class=\"line\" stroke=\"{colour}\" points=\"{}\"/>",
                    points.join(" ")
                ));
            }
            let marked = |(x, y): &&(f64, f64)| {
                *y > 0.0 && (!self.categories.is_empty() || CYCLES.contains(x))
            };
            for (x, y) in series.points.iter().filter(marked).map(place) {
                put(mark(at, x, y, colour));
            }
            let y = TOP + 12.0 + 22.0 * at as f64;
            put(mark(at, right + 18.0, y - 4.0, colour));
            put(text(right + 32.0, y, "start", "", &series.name));
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// A mark of its own form for each series, so that colour is not all that tells them apart.
fn mark(at: usize, x: f64, y: f64, colour: &str) -> String {
    match at % 4 {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\" fill=\"{colour}\"/>"),
        1 => format!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"8\" height=\"8\" fill=\"{colour}\"/>",
            x - 4.0,
            y - 4.0
        ),
        2 => format!("<path d=\"M{x:.1} {:.1}l5 9h-10z\" fill=\"{colour}\"/>", y - 5.5),
        _ => format!(
            "<path d=\"M{x:.1} {:.1}l5.5 5.5-5.5 5.5-5.5-5.5z\" fill=\"{colour}\"/>",
            y - 5.5
        ),
    }
}

/// Round values between two powers of ten: 1, 2 and 5 of each where they have room.
fn ticks(low: f64, high: f64) -> Vec<(f64, String)> {
    let steps: &[f64] = if high - low > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let mut ticks = Vec::new();
    for power in low.floor() as i32..=high.ceil() as i32 {
        for step in steps {
            let value = step * 10f64.powi(power);
            if (low..=high).contains(&value.log10()) {
                ticks.push((value, format!("{step}e{power}")));
            }
        }
    }
    ticks
}

fn text(x: f64, y: f64, anchor: &str, class: &str, content: &str) -> String {
    let mut line = format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"");
    if !class.is_empty() {
        write!(line, " class=\"{class}\"").expect("BUG: a string refuses text");
    }
    write!(line, ">{}</text>", escape(content)).expect("BUG: a string refuses text");
    line
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
