//! The figures as one picture that needs nothing else: an SVG of panels below each other, or the same within an HTML page.
//!
//! Colours are named by value here and by meaning in [`STYLE`], which gives each its shade in light and in dark surroundings.

use std::error::Error;

use plotters::prelude::*;

use super::pressure::Picture;
use super::rows::{Row, Rows};

/// A panel, in units of which a phone shows nearly all one by one.
const WIDTH: u32 = 380;
const HEIGHT: u32 = 220;
/// Plotters makes a point of text four fifths of a unit high.
const TEXT: i32 = 15;
const TITLE: i32 = 17;

const INK: RGBColor = RGBColor(0x1f, 0x23, 0x28);
const GRID: RGBColor = RGBColor(0xd0, 0xd7, 0xde);
const BEFORE: RGBColor = RGBColor(0xbc, 0x4c, 0x00);
const AFTER: RGBColor = RGBColor(0x09, 0x69, 0xda);
/// Of a map's cells: free, up to a third, two thirds, and more in use.
const LEVELS: [RGBColor; 4] = [
    RGBColor(0xee, 0xf1, 0xf5),
    RGBColor(0xb6, 0xd7, 0xfb),
    RGBColor(0x5a, 0xa6, 0xf2),
    RGBColor(0x0a, 0x58, 0xb8),
];

/// Shades for dark surroundings; those for light ones are the values themselves.
const STYLE: &str = r##"
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
.paper{fill:#ffffff}
@media (prefers-color-scheme:dark){
.paper{fill:#0d1117}
[fill="#1F2328"]{fill:#e6edf3}[stroke="#1F2328"]{stroke:#e6edf3}
[fill="#D0D7DE"]{fill:#3d444d}[stroke="#D0D7DE"]{stroke:#3d444d}
[fill="#BC4C00"]{fill:#f0883e}[stroke="#BC4C00"]{stroke:#f0883e}
[fill="#0969DA"]{fill:#58a6ff}[stroke="#0969DA"]{stroke:#58a6ff}
[fill="#EEF1F5"]{fill:#21262d}
[fill="#B6D7FB"]{fill:#1b3f66}
[fill="#5AA6F2"]{fill:#2f6fb5}
[fill="#0A58B8"]{fill:#79c0ff}
}
"##;

type Drawn = Result<String, Box<dyn Error>>;

/// What a curve shows.
struct Curve {
    title: &'static str,
    seed: &'static str,
    /// The case of each variant.
    cases: [&'static str; 2],
}

const CURVES: [Curve; 6] = [
    Curve {
        title: "S0: LRU lock per node or per list, 24 groups",
        seed: "s0",
        cases: ["page_test, 24 groups"; 2],
    },
    Curve {
        title: "S1: object lists, 256 groups read files",
        seed: "s1",
        cases: ["files, 256 groups under one limit"; 2],
    },
    Curve {
        title: "S1: shadow nodes, 64 groups under pressure",
        seed: "s1",
        cases: ["memhog, slots at random"; 2],
    },
    Curve {
        title: "S2: pagesets 7/42, then 63/378",
        seed: "s2",
        cases: ["fixed mixed trace, each CPU"; 2],
    },
    Curve {
        title: "S3: activation one by one, then in 31s",
        seed: "s3",
        cases: ["readtwice, batch 1", "readtwice, batch 31"],
    },
    Curve {
        title: "S4: state counts locked, then not",
        seed: "s4",
        cases: ["each CPU maps pages of one group"; 2],
    },
];

/// Bars: their name, and what they show.
const BARS: [(&str, Curve); 5] = [
    (
        "S0",
        Curve {
            title: "",
            seed: "s0",
            cases: ["page_test, 24 groups"; 2],
        },
    ),
    (
        "S1",
        Curve {
            title: "",
            seed: "s1",
            cases: ["files, 256 groups under one limit"; 2],
        },
    ),
    (
        "S2",
        Curve {
            title: "",
            seed: "s2",
            cases: ["fixed mixed trace, threads"; 2],
        },
    ),
    (
        "S3",
        Curve {
            title: "",
            seed: "s3",
            cases: ["readtwice, batch 1", "readtwice, batch 31"],
        },
    ),
    (
        "S4",
        Curve {
            title: "",
            seed: "s4",
            cases: ["8192 pages, always locked", "8192 pages, no mover"],
        },
    ),
];

const VARIANTS: [(&str, RGBColor); 2] = [("before", BEFORE), ("after", AFTER)];

fn font(size: i32, colour: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&colour)
}

/// The picture: as a page if the file's name says so.
pub fn report(file: &str, rows: &Rows, picture: &Picture) -> Drawn {
    let mut panels = vec![legend()];
    for curve in &CURVES {
        if let Some(panel) = scaling(curve, rows)? {
            panels.push((HEIGHT, panel));
        }
    }
    if let Some(panel) = bars(rows)? {
        panels.push((HEIGHT, panel));
    }
    panels.push((
        HEIGHT,
        map(
            "Frames in use, half the groups ended: before",
            &picture.before,
        )?,
    ));
    panels.push((HEIGHT, map("The same after pressure", &picture.after)?));
    panels.push((HEIGHT, lists(picture)?));
    let height: u32 = panels.iter().map(|panel| panel.0).sum();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\n\
         <title>framekeeper: each mechanism before and after</title>\n<style>{STYLE}</style>\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n"
    );
    let mut y = 0;
    for (height, panel) in panels {
        svg.push_str(&panel.replacen("<svg ", &format!("<svg y=\"{y}\" "), 1));
        y += height;
    }
    svg.push_str("</svg>\n");
    if !file.ends_with(".html") {
        return Ok(svg);
    }
    let svg = svg.replacen(&format!(" width=\"{WIDTH}\" height=\"{height}\""), "", 1);
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>framekeeper</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><meta name=\"color-scheme\" content=\"light dark\">\
         <style>body{{margin:0}}svg{{display:block}}body>svg{{max-width:760px;margin:auto}}</style>\n{svg}</html>\n"
    ))
}

/// The top: which colour is what.
fn legend() -> (u32, String) {
    let row = |y, fill: &str, text: &str| {
        format!(
            "<rect x=\"12\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{fill}\"/><text x=\"30\" y=\"{y}\" font-size=\"12\" fill=\"#1F2328\">{text}</text>\n",
            y - 11
        )
    };
    let text = [
        "<text x=\"12\" y=\"24\" font-size=\"15\" font-weight=\"600\" fill=\"#1F2328\">framekeeper: what each mechanism saves</text>\n".to_owned(),
        row(46, "#BC4C00", "before: the mechanism off, same binary, same trace"),
        row(66, "#0969DA", "after: the mechanism on"),
    ];
    let svg = format!(
        "<svg width=\"{WIDTH}\" height=\"76\">\n{}</svg>\n",
        text.concat()
    );
    (76, svg)
}

fn find<'r>(rows: &'r Rows, curve: &Curve, variant: usize, metric: &str) -> Vec<&'r Row> {
    let fits = |row: &&Row| {
        row.seed == curve.seed
            && row.case == curve.cases[variant]
            && row.variant == VARIANTS[variant].0
            && row.metric == metric
    };
    rows.0.iter().filter(fits).collect()
}

/// Contended acquisitions by virtual CPUs.
fn scaling(curve: &Curve, rows: &Rows) -> Result<Option<String>, Box<dyn Error>> {
    let points = [0, 1].map(|variant| {
        let rows = find(rows, curve, variant, "contended_per_1000");
        let simulated = rows.into_iter().filter(|row| row.cpus > 0);
        simulated
            .map(|row| (row.cpus, row.value))
            .collect::<Vec<_>>()
    });
    let cpus: Vec<u32> = points[0].iter().map(|point| point.0).collect();
    if cpus.len() < 2 {
        return Ok(None);
    }
    let most = points
        .iter()
        .flatten()
        .map(|point| point.1)
        .fold(1.0, f64::max);
    let last = (cpus.len() - 1) as f64;
    let mut out = String::new();
    {
        let root = SVGBackend::with_string(&mut out, (WIDTH, HEIGHT)).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin(10)
            .caption(curve.title, font(TITLE, INK))
            .x_label_area_size(36)
            .y_label_area_size(58)
            .build_cartesian_2d(-0.2..last + 0.2, 0.0..most * 1.08)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(cpus.len())
            .x_label_formatter(&|x| {
                let whole = (x - x.round()).abs() < 0.01;
                let at = cpus.get(x.round().max(0.0) as usize).filter(|_| whole);
                at.map_or(String::new(), u32::to_string)
            })
            .x_desc("virtual CPUs")
            .y_labels(5)
            .y_label_formatter(&|y| {
                if most < 10.0 {
                    format!("{y:.1}")
                } else {
                    format!("{y:.0}")
                }
            })
            .y_desc("contended per 1000")
            .label_style(font(TEXT, INK))
            .axis_desc_style(font(TEXT, INK))
            .axis_style(GRID)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (points, (_, colour)) in points.iter().zip(VARIANTS) {
            let at = || {
                points
                    .iter()
                    .enumerate()
                    .map(|(x, point)| (x as f64, point.1))
            };
            chart.draw_series(LineSeries::new(at(), colour.stroke_width(2)))?;
            chart.draw_series(at().map(|point| Circle::new(point, 3, colour.filled())))?;
        }
        root.present()?;
    }
    Ok(Some(out))
}

/// Times on real threads, as shares of the median before.
fn bars(rows: &Rows) -> Result<Option<String>, Box<dyn Error>> {
    let mut bars = Vec::new();
    for (name, curve) in &BARS {
        let of = |variant| {
            let mut found = find(rows, curve, variant, "wall_ms_median");
            found.extend(
                find(rows, curve, variant, "ns_per_op")
                    .into_iter()
                    .filter(|row| row.threads > 0),
            );
            found
                .first()
                .copied()
                .and_then(|row| Some((row.value, row.range?)))
        };
        if let (Some(before), Some(after)) = (of(0), of(1)) {
            bars.push((
                *name,
                [before, after].map(|(value, (low, high))| {
                    [value, low, high].map(|time| time / before.0 * 100.0)
                }),
            ));
        }
    }
    if bars.is_empty() {
        return Ok(None);
    }
    let most = bars
        .iter()
        .flat_map(|(_, pair)| pair.map(|bar| bar[2]))
        .fold(100.0, f64::max);
    let mut out = String::new();
    {
        let root = SVGBackend::with_string(&mut out, (WIDTH, HEIGHT)).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin(10)
            .caption("Time on threads, median and range", font(TITLE, INK))
            .x_label_area_size(20)
            .y_label_area_size(48)
            .build_cartesian_2d(0.0..bars.len() as f64, 0.0..most * 1.05)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .x_labels(bars.len() * 2 + 1)
            .x_label_formatter(&|x| {
                let middle = (x.fract() - 0.5).abs() < 0.01;
                let bar = bars.get(*x as usize).filter(|_| middle);
                bar.map_or(String::new(), |bar| bar.0.to_owned())
            })
            .y_labels(5)
            .y_label_formatter(&|y| format!("{y:.0} %"))
            .label_style(font(TEXT, INK))
            .axis_style(GRID)
            .draw()?;
        for (at, (_, pair)) in bars.iter().enumerate() {
            for (bar, (variant, (_, colour))) in pair.iter().zip(VARIANTS.into_iter().enumerate()) {
                let from = at as f64 + 0.12 + 0.4 * variant as f64;
                let [value, low, high] = *bar;
                chart.draw_series([Rectangle::new(
                    [(from, 0.0), (from + 0.34, value)],
                    colour.filled(),
                )])?;
                let middle = from + 0.17;
                let range = [(middle, low), (middle, high)];
                chart.draw_series(LineSeries::new(range, INK.stroke_width(2)))?;
            }
        }
        root.present()?;
    }
    Ok(Some(out))
}

/// A zone's frames, row by row, 32 cells each.
fn map(title: &str, cells: &[f64]) -> Drawn {
    const ACROSS: usize = 32;
    let mut out = String::new();
    {
        let root = SVGBackend::with_string(&mut out, (WIDTH, HEIGHT)).into_drawing_area();
        root.draw(&Text::new(title, (12, 10), font(TITLE, INK)))?;
        let (wide, high) = (11, 10);
        for (n, used) in cells.iter().enumerate() {
            let corner = (
                14 + (n % ACROSS) as i32 * wide,
                32 + (n / ACROSS) as i32 * high,
            );
            let level = match used {
                used if *used <= 0.0 => 0,
                used => 1 + ((used * 3.0) as usize).min(2),
            };
            let ends = [corner, (corner.0 + wide - 1, corner.1 + high - 1)];
            root.draw(&Rectangle::new(ends, LEVELS[level].filled()))?;
        }
        let below = 32 + cells.len().div_ceil(ACROSS) as i32 * high + 6;
        for (n, name) in ["free", "a third", "two thirds", "more"].iter().enumerate() {
            let x = 14 + n as i32 * 90;
            let square = [(x, below), (x + 10, below + 10)];
            root.draw(&Rectangle::new(square, LEVELS[n].filled()))?;
            root.draw(&Text::new(*name, (x + 15, below - 1), font(TEXT, INK)))?;
        }
        root.present()?;
    }
    Ok(out)
}

/// The lists' lengths over time.
fn lists(picture: &Picture) -> Drawn {
    let most = picture
        .lists
        .iter()
        .map(|lists| lists[0] + lists[1])
        .max()
        .unwrap_or(1);
    let last = picture.lists.len() as f64;
    let mut out = String::new();
    {
        let root = SVGBackend::with_string(&mut out, (WIDTH, HEIGHT)).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin(10)
            .caption("LRU lists, 8 groups write, then read", font(TITLE, INK))
            .x_label_area_size(20)
            .y_label_area_size(48)
            .build_cartesian_2d(0.0..last, 0.0..most as f64 * 1.15)?;
        let written = picture.written as f64;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_labels(5)
            .y_label_formatter(&|y| format!("{:.0}k", y / 1000.0))
            .label_style(font(TEXT, INK))
            .axis_style(GRID)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (list, colour, name) in [(0, BEFORE, "inactive"), (1, AFTER, "active")] {
            let points: Vec<_> = picture
                .lists
                .iter()
                .enumerate()
                .map(|(x, lists)| (x as f64, lists[list] as f64))
                .collect();
            chart.draw_series(LineSeries::new(
                points.iter().copied(),
                colour.stroke_width(2),
            ))?;
            if let Some(&(x, y)) = points.get(picture.written / 2 + picture.written) {
                let style = font(TEXT, colour);
                chart.draw_series([Text::new(name, (x, y + most as f64 * 0.14), style)])?;
            }
        }
        chart.draw_series(LineSeries::new(
            [(written, 0.0), (written, most as f64 * 1.1)],
            GRID.stroke_width(1),
        ))?;
        for (x, name) in [(0.02, "writing"), (0.52, "reading")] {
            let style = font(TEXT, INK);
            chart.draw_series([Text::new(name, (last * x, most as f64 * 1.14), style)])?;
        }
        root.present()?;
    }
    Ok(out)
}
