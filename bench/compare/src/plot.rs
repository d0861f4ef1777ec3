//! Plots as SVG: bars with their spread, and latencies by percentile. No script, no font, nothing fetched.

use std::fmt::Write as _;

/// Pixels.
const WIDTH: f64 = 860.0;
const LEFT: f64 = 260.0;
const RIGHT: f64 = 110.0;
const ROW: f64 = 26.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 50.0;

/// What a system is to the reader: its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Ourselves.
    Ours,
    /// A peer that syncs before it confirms.
    Synced,
    /// A peer that does not.
    Unsynced,
    /// What nothing can be faster than.
    Floor,
}

impl Tone {
    fn fill(self) -> &'static str {
        match self {
            Tone::Ours => "#2563eb",
            Tone::Synced => "#475569",
            Tone::Unsynced => "#b6c2d1",
            Tone::Floor => "#d9a441",
        }
    }
}

/// One bar.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
    /// The smallest and the largest round.
    pub(crate) range: (f64, f64),
    pub(crate) tone: Tone,
}

/// Three percentiles of one system.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) label: String,
    /// p50, p99 and p99.9, in milliseconds.
    pub(crate) ms: [f64; 3],
    pub(crate) tone: Tone,
}

/// Bars with a whisker from the smallest round to the largest, on a linear scale from zero.
pub(crate) fn bars(title: &str, unit: &str, bars: &[Bar]) -> String {
    let most = bars.iter().map(|bar| bar.range.1.max(bar.value)).filter(|value| value.is_finite());
    let most = most.fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * (value / most).clamp(0.0, 1.0);
    let mut svg = open(title, bars.len());
    for (row, bar) in bars.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        label(&mut svg, y, &bar.label, bar.tone);
        if !bar.value.is_finite() {
            continue;
        }
        let (low, high) = (x(bar.range.0), x(bar.range.1));
        let _ = write!(
            svg,
            "<rect x='{LEFT}' y='{:.1}' width='{:.1}' height='{:.1}' rx='2' fill='{}'/>\
             <path d='M{low:.1} {mid:.1}H{high:.1}M{low:.1} {up:.1}V{down:.1}M{high:.1} {up:.1}V{down:.1}' \
             stroke='#111827' stroke-width='1.2' fill='none'/>\
             <text x='{:.1}' y='{:.1}' class='v'>{}</text>",
            y + 4.0,
            (x(bar.value) - LEFT).max(1.0),
            ROW - 9.0,
            bar.tone.fill(),
            x(bar.value).max(high) + 7.0,
            y + 17.0,
            escaped(&amount(bar.value)),
            mid = y + 12.5,
            up = y + 9.0,
            down = y + 16.0,
        );
    }
    close(svg, bars.len(), &format!("{unit}; bars are medians, whiskers the smallest and the largest round"))
}

/// p50, p99 and p99.9 of each system on a logarithmic scale.
pub(crate) fn percentiles(title: &str, lines: &[Line]) -> String {
    let all = || lines.iter().flat_map(|line| line.ms).filter(|ms| ms.is_finite() && *ms > 0.0);
    let low = all().fold(f64::MAX, f64::min).log10().floor().clamp(-3.0, 5.0);
    let high = all().fold(f64::MIN_POSITIVE, f64::max).log10().ceil().max(low + 1.0);
    let x = |ms: f64| {
        LEFT + (WIDTH - LEFT - RIGHT) * ((ms.max(1e-9).log10() - low) / (high - low)).clamp(0.0, 1.0)
    };
    let mut svg = open(title, lines.len());
    let bottom = TOP + ROW * lines.len() as f64;
    for power in low as i32..=high as i32 {
        let at = x(10f64.powi(power));
        let _ = write!(
            svg,
            "<path d='M{at:.1} {:.1}V{bottom:.1}' stroke='#e5e7eb'/><text x='{at:.1}' y='{:.1}' class='t'>{} ms</text>",
            TOP - 4.0,
            TOP - 8.0,
            amount(10f64.powi(power)),
        );
    }
    for (row, line) in lines.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        label(&mut svg, y, &line.label, line.tone);
        // What was too few for a percentile ends where the one before it does.
        let [p50, p99, p999] = line.ms;
        let p99 = if p99.is_finite() { p99 } else { p50 };
        let p999 = if p999.is_finite() { p999 } else { p99 };
        let [p50, p99, p999] = [p50, p99, p999].map(|ms| if ms.is_finite() { x(ms) } else { LEFT });
        let (mid, fill) = (y + 12.5, line.tone.fill());
        let _ = write!(
            svg,
            "<path d='M{p50:.1} {mid:.1}H{p999:.1}' stroke='{fill}' stroke-width='3'/>\
             <circle cx='{p50:.1}' cy='{mid:.1}' r='6' fill='{fill}'/>\
             <rect x='{:.1}' y='{:.1}' width='9' height='9' fill='{fill}'/>\
             <path d='M{p999:.1} {:.1}V{:.1}' stroke='{fill}' stroke-width='3'/>\
             <text x='{:.1}' y='{:.1}' class='v'>{} / {} / {}</text>",
            p99 - 4.5,
            mid - 4.5,
            mid - 7.0,
            mid + 7.0,
            WIDTH - RIGHT + 8.0,
            y + 17.0,
            amount(line.ms[0]),
            amount(line.ms[1]),
            amount(line.ms[2]),
        );
    }
    close(svg, lines.len(), "ms, logarithmic; ● p50, ■ p99, | p99.9")
}

fn open(title: &str, rows: usize) -> String {
    let height = TOP + ROW * rows as f64 + BOTTOM;
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}' \
         role='img' aria-label='{title}'><style>text{{font:13px system-ui,sans-serif;fill:#111827}}\
         .h{{font-weight:600;font-size:15px}}.l{{text-anchor:end}}.o{{font-weight:600}}.v{{font-size:12px}}\
         .t{{font-size:11px;text-anchor:middle;fill:#6b7280}}.f{{font-size:11px;fill:#6b7280}}</style>\
         <rect width='100%' height='100%' fill='#ffffff'/><text x='12' y='20' class='h'>{title}</text>",
        title = escaped(title)
    )
}

fn label(svg: &mut String, y: f64, text: &str, tone: Tone) {
    let class = if tone == Tone::Ours { "l o" } else { "l" };
    let _ =
        write!(svg, "<text x='{}' y='{:.1}' class='{class}'>{}</text>", LEFT - 8.0, y + 17.0, escaped(text));
}

fn close(mut svg: String, rows: usize, legend: &str) -> String {
    let y = TOP + ROW * rows as f64 + 20.0;
    let tones = [
        (Tone::Ours, "ours"),
        (Tone::Synced, "synced before the answer"),
        (Tone::Unsynced, "not synced"),
        (Tone::Floor, "floor"),
    ];
    let _ = write!(svg, "<text x='12' y='{y:.1}' class='f'>{}</text>", escaped(legend));
    // Under the words, which may be long.
    let (mut x, y) = (12.0, y + 17.0);
    for (tone, name) in tones {
        let _ = write!(
            svg,
            "<rect x='{x:.1}' y='{:.1}' width='10' height='10' fill='{}'/><text x='{:.1}' y='{y:.1}' class='f'>{name}</text>",
            y - 9.0,
            tone.fill(),
            x + 14.0,
        );
        x += 34.0 + 6.2 * name.len() as f64;
    }
    svg.push_str("</svg>\n");
    svg
}

/// A number as short as it can be read.
pub(crate) fn amount(value: f64) -> String {
    match value {
        value if !value.is_finite() => "–".to_owned(),
        value if value >= 10_000.0 => format!("{:.1}k", value / 1_000.0),
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 0.1 || value == 0.0 => {
            format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        value => format!("{value:.3}").trim_end_matches('0').to_owned(),
    }
}

/// Text for an element or an attribute.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('\'', "&#39;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_is_well_formed_and_says_its_values() {
        let bar = Bar { label: "a & b".into(), value: 12_345.0, range: (10.0, 20_000.0), tone: Tone::Ours };
        let svg = bars("Rates <x>", "a second", &[bar]);
        assert!(svg.contains("a &amp; b") && svg.contains("12.3k") && svg.contains("Rates &lt;x&gt;"));
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
        let line = Line { label: "l".into(), ms: [0.2, 3.0, f64::NAN], tone: Tone::Floor };
        assert!(percentiles("t", &[line]).ends_with("</svg>\n"));
    }

    #[test]
    fn amounts_are_short() {
        let shown = [0.0, 0.012, 0.5, 12.34, 123.4, 12_345.0, f64::NAN].map(amount);
        assert_eq!(shown, ["0", "0.012", "0.5", "12.3", "123", "12.3k", "–"]);
    }
}
