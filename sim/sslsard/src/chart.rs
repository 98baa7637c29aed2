//! Line chart as SVG: axes with units, a legend, error bars; readable without colours and in print.
//!
//! Invariants: the same chart gives the same bytes; coordinates have one decimal; text is escaped. The module only has
//! what a line chart of a few series needs.

use std::fmt::Write;

/// A chart.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// Heading.
    pub title: String,
    /// Name of the x axis, with its unit.
    pub x_label: String,
    /// Name of the y axis, with its unit.
    pub y_label: String,
    /// Scale of the y axis.
    pub y_scale: Scale,
    /// Whether the y axis of a linear scale begins at zero; otherwise it begins near the least value.
    pub from_zero: bool,
    /// Lines, in the order of the legend.
    pub series: Vec<Series>,
    /// Points in time on the x axis, each with its event.
    pub marks: Vec<(f64, String)>,
}

/// Scale of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps.
    #[default]
    Linear,
    /// Powers of ten.
    Logarithmic,
}

/// Line of a chart.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points, from left to right.
    pub points: Vec<Point>,
}

/// Point of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Place on the x axis.
    pub x: f64,
    /// Place on the y axis.
    pub y: f64,
    /// Half the length of the error bar.
    pub error: Option<f64>,
}

const WIDTH: f64 = 760.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 44.0;
const PLOT_HEIGHT: f64 = 340.0;
const BELOW_AXIS: f64 = 52.0;
const LEGEND_ROW: f64 = 20.0;
const LEGEND_COLUMNS: usize = 3;

/// The colours of Okabe and Ito, which colour-blind readers can distinguish, and dashes for print.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7a7a00"];
const DASHES: [&str; 4] = ["", "7 4", "2 3", "9 3 2 3"];

/// Draws a chart as one SVG document.
pub fn svg(chart: &Chart) -> String {
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let x_axis = Axis::linear(points().map(|point| point.x), false, 9);
    let spread = |point: &Point| {
        let error = point.error.unwrap_or(0.0);
        // Values that cannot be negative are not drawn below zero.
        let low = point.y - error;
        [if chart.from_zero { low.max(0.0) } else { low }, point.y + error]
    };
    let y_axis = match chart.y_scale {
        Scale::Linear => Axis::linear(points().flat_map(spread), chart.from_zero, 7),
        Scale::Logarithmic => Axis::logarithmic(points().map(|point| point.y)),
    };
    let rows = chart.series.len().div_ceil(LEGEND_COLUMNS);
    let height = TOP + PLOT_HEIGHT + BELOW_AXIS + rows as f64 * LEGEND_ROW + 8.0;
    let mut canvas = Canvas {
        out: String::new(),
        x: Span { axis: x_axis, from: LEFT, to: WIDTH - RIGHT },
        y: Span { axis: y_axis, from: TOP + PLOT_HEIGHT, to: TOP },
    };
    let title = escaped(&chart.title);
    let _ = writeln!(
        canvas.out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">\n\
         <title>{title}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"16\" font-weight=\"bold\">{title}</text>"
    );
    canvas.grid(chart);
    for (index, series) in chart.series.iter().enumerate() {
        canvas.series(index, series);
    }
    canvas.legend(chart);
    canvas.out.push_str("</svg>\n");
    canvas.out
}

struct Canvas {
    out: String,
    x: Span,
    y: Span,
}

/// An axis in pixels.
struct Span {
    axis: Axis,
    from: f64,
    to: f64,
}

impl Span {
    fn place(&self, value: f64) -> f64 {
        self.from + (self.to - self.from) * self.axis.part(value)
    }
}

impl Canvas {
    fn grid(&mut self, chart: &Chart) {
        let (left, right, bottom, top) = (self.x.from, self.x.to, self.y.from, self.y.to);
        for tick in &self.y.axis.ticks {
            let y = self.y.place(*tick);
            let _ = writeln!(
                self.out,
                "<path d=\"M{left:.1} {y:.1}H{right:.1}\" stroke=\"#dddddd\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{}</text>",
                left - 8.0,
                y + 4.5,
                self.y.axis.label(*tick)
            );
        }
        for tick in &self.x.axis.ticks {
            let x = self.x.place(*tick);
            let _ = writeln!(
                self.out,
                "<path d=\"M{x:.1} {bottom:.1}v5\" stroke=\"#333333\"/><text x=\"{x:.1}\" y=\"{:.1}\" \
                 text-anchor=\"middle\">{}</text>",
                bottom + 20.0,
                self.x.axis.label(*tick)
            );
        }
        for (at, label) in &chart.marks {
            let x = self.x.place(*at);
            let _ = writeln!(
                self.out,
                "<path d=\"M{x:.1} {bottom:.1}V{top:.1}\" stroke=\"#888888\" stroke-dasharray=\"3 3\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#555555\" font-size=\"12\">{}</text>",
                x + 4.0,
                top + 12.0,
                escaped(label)
            );
        }
        let (middle_x, middle_y) = (f64::midpoint(left, right), f64::midpoint(bottom, top));
        let _ = writeln!(
            self.out,
            "<path d=\"M{left:.1} {top:.1}V{bottom:.1}H{right:.1}\" fill=\"none\" stroke=\"#333333\"/>\n\
             <text x=\"{middle_x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n\
             <text x=\"18\" y=\"{middle_y:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 18 \
             {middle_y:.1})\">{}</text>",
            bottom + 42.0,
            escaped(&chart.x_label),
            escaped(&chart.y_label)
        );
    }

    fn series(&mut self, index: usize, series: &Series) {
        let (colour, dash) = style(index);
        let place = |point: &Point| (self.x.place(point.x), self.y.place(point.y));
        let mut path = String::new();
        for (i, point) in series.points.iter().enumerate() {
            let (x, y) = place(point);
            let _ = write!(path, "{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' });
        }
        let _ = writeln!(
            self.out,
            "<g stroke=\"{colour}\" stroke-width=\"1.8\" fill=\"{colour}\"><path d=\"{path}\" fill=\"none\"{dash}/>"
        );
        for point in &series.points {
            let (x, y) = place(point);
            if let Some(error) = point.error {
                let (low, high) = (self.y.place(point.y - error), self.y.place(point.y + error));
                let _ = writeln!(
                    self.out,
                    "<path d=\"M{:.1} {high:.1}h8m-4 0V{low:.1}m-4 0h8\" fill=\"none\" stroke-width=\"1.2\"/>",
                    x - 4.0
                );
            }
            let _ = writeln!(self.out, "{}", marker(index, x, y));
        }
        self.out.push_str("</g>\n");
    }

    fn legend(&mut self, chart: &Chart) {
        let column = (WIDTH - LEFT - RIGHT) / LEGEND_COLUMNS as f64;
        for (index, series) in chart.series.iter().enumerate() {
            let x = LEFT + (index % LEGEND_COLUMNS) as f64 * column;
            let y = self.y.from + BELOW_AXIS + 10.0 + (index / LEGEND_COLUMNS) as f64 * LEGEND_ROW;
            let (colour, dash) = style(index);
            let _ = writeln!(
                self.out,
                "<g stroke=\"{colour}\" stroke-width=\"1.8\" fill=\"{colour}\"><path d=\"M{x:.1} \
                 {y:.1}h32\"{dash}/>{}</g>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                marker(index, x + 16.0, y),
                x + 40.0,
                y + 4.5,
                escaped(&series.name)
            );
        }
    }
}

/// Colour and dash of a series.
fn style(index: usize) -> (&'static str, String) {
    let dash = DASHES[index % DASHES.len()];
    let dash = if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
    (COLOURS[index % COLOURS.len()], dash)
}

fn marker(index: usize, x: f64, y: f64) -> String {
    match index % 5 {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>"),
        1 => format!("<rect x=\"{:.1}\" y=\"{:.1}\" width=\"7\" height=\"7\"/>", x - 3.5, y - 3.5),
        2 => format!("<path d=\"M{x:.1} {:.1}l4.5 8h-9z\"/>", y - 5.0),
        3 => format!("<path d=\"M{x:.1} {:.1}l5 5-5 5-5-5z\"/>", y - 5.0),
        _ => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"#ffffff\"/>"),
    }
}

/// From `low` to `high` with round ticks between.
#[derive(Clone, Debug)]
struct Axis {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
    decimals: usize,
    scale: Scale,
}

impl Axis {
    fn linear(values: impl Iterator<Item = f64>, from_zero: bool, ticks: usize) -> Axis {
        let (low, high) = ends(values);
        let low = if from_zero { low.min(0.0) } else { low };
        let high = if high > low { high } else { low + 1.0 };
        let (step, decimals) = round_step((high - low) / ticks as f64);
        let first = libm::floor(low / step + 1e-9);
        let last = libm::ceil(high / step - 1e-9);
        let count = (last - first) as usize;
        Axis {
            low: first * step,
            high: last * step,
            ticks: (0..=count).map(|i| (first + i as f64) * step).collect(),
            decimals,
            scale: Scale::Linear,
        }
    }

    /// Powers of ten. Values that are not positive are drawn at the bottom.
    fn logarithmic(values: impl Iterator<Item = f64>) -> Axis {
        let (low, high) = ends(values.filter(|value| *value > 0.0));
        let first = libm::floor(libm::log10(low.max(1e-3))) as i32;
        let last = (libm::ceil(libm::log10(high.max(1e-3))) as i32).max(first + 1);
        let power = |exponent| libm::exp10(f64::from(exponent));
        Axis {
            low: power(first),
            high: power(last),
            ticks: (first..=last).map(power).collect(),
            decimals: usize::try_from(-first).unwrap_or(0),
            scale: Scale::Logarithmic,
        }
    }

    fn part(&self, value: f64) -> f64 {
        let part = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Logarithmic => {
                let low = libm::log10(self.low);
                (libm::log10(value.max(self.low)) - low) / (libm::log10(self.high) - low)
            }
        };
        part.clamp(0.0, 1.0)
    }

    fn label(&self, tick: f64) -> String {
        let decimals = if self.scale == Scale::Logarithmic && tick >= 1.0 { 0 } else { self.decimals };
        let text = format!("{tick:.decimals$}");
        // Minus zero, which a sum of steps may result in.
        if text.trim_start_matches('-').chars().all(|c| matches!(c, '0' | '.')) {
            text.trim_start_matches('-').to_owned()
        } else {
            text
        }
    }
}

fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let ends = values.filter(|value| value.is_finite()).fold(None, |ends: Option<(f64, f64)>, value| {
        Some(ends.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
    });
    ends.unwrap_or((0.0, 1.0))
}

/// The least of 1, 2 and 5 times a power of ten that is not below `step`, and the decimals to show it.
fn round_step(step: f64) -> (f64, usize) {
    let mut exponent = libm::floor(libm::log10(step)) as i32;
    let mut power = libm::exp10(f64::from(exponent));
    for _ in 0..2 {
        for factor in [1.0, 2.0, 5.0] {
            if factor * power >= step * (1.0 - 1e-9) {
                return (factor * power, usize::try_from(-exponent).unwrap_or(0));
            }
        }
        exponent += 1;
        power *= 10.0;
    }
    (power, usize::try_from(-exponent).unwrap_or(0))
}

/// Text for an element or attribute of SVG and HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_enclose_the_values() {
        for (low, high, ticks) in [
            (40.0, 80.0, vec![40.0, 45.0, 50.0, 55.0, 60.0, 65.0, 70.0, 75.0, 80.0]),
            (0.21, 0.96, vec![0.2, 0.4, 0.6, 0.8, 1.0]),
            (3.0, 1770.0, vec![0.0, 500.0, 1000.0, 1500.0, 2000.0]),
        ] {
            let axis = Axis::linear([low, high].into_iter(), false, if low == 40.0 { 9 } else { 5 });
            assert_eq!(axis.ticks.len(), ticks.len(), "{axis:?}");
            assert!(axis.ticks.iter().zip(&ticks).all(|(a, b)| (a - b).abs() < 1e-9), "{axis:?}");
            assert!(axis.low <= low && axis.high >= high);
        }
        let axis = Axis::logarithmic([4.0, 51_000.0].into_iter());
        assert_eq!(
            axis.ticks.iter().map(|tick| axis.label(*tick)).collect::<Vec<_>>(),
            ["1", "10", "100", "1000", "10000", "100000"]
        );
    }

    #[test]
    fn charts_with_at_most_one_point_can_be_drawn() {
        let mut chart = Chart { title: "a < b & \"c\"".to_owned(), ..Chart::default() };
        assert!(svg(&chart).contains("a &lt; b &amp; &quot;c&quot;"));
        let point = Point { x: 5.0, y: 0.0, error: Some(0.0) };
        for y_scale in [Scale::Linear, Scale::Logarithmic] {
            chart.y_scale = y_scale;
            chart.series = vec![Series { name: "one".to_owned(), points: vec![point] }];
            let svg = svg(&chart);
            assert!(svg.contains("one") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
