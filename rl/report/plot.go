package report

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/rltrain/rltrain/internal/outfile"
)

// Style is how a series is drawn.
type Style int

// Styles of a series.
const (
	Line   Style = iota // a curve
	Smooth              // many noisy values: a thin curve under its running mean
	Points              // few values: a curve with dots
	Level               // one value: a dashed horizontal line; X is ignored
)

// Series is one curve. Values must be finite.
type Series struct {
	Label string
	X, Y  []float64
	Style Style
	// Low and High are intervals around Y, or nil. They show as a band around a curve, or a bar through a dot.
	Low, High []float64
}

// Panel is one pair of axes; x counts steps or epochs. It has a legend if it has several series.
type Panel struct {
	Title, XLabel, YLabel string
	Series                []Series
}

// palette is Okabe and Ito's (2008), which is safe for colour-blind readers.
var palette = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, // blue
	{0xd5, 0x5e, 0x00, 0xff}, // vermilion
	{0x00, 0x9e, 0x73, 0xff}, // green
	{0xcc, 0x79, 0xa7, 0xff}, // purple
	{0xe6, 0x9f, 0x00, 0xff}, // orange
	{0x56, 0xb4, 0xe9, 0xff}, // sky blue
	{0x33, 0x33, 0x33, 0xff}, // ink
}

var (
	ink  = color.RGBA{0x33, 0x33, 0x33, 0xff}
	pale = color.RGBA{0xdd, 0xdd, 0xdd, 0xff}
)

const (
	panelWidth  = 5.6 * vg.Inch
	panelHeight = 2.7 * vg.Inch
	margin      = 0.2 * vg.Inch
	dotsPerInch = 144
)

// Curves draws panels in one column, or in two if there are more than three, and writes path (.png) and the same picture
// as .svg.
func Curves(path string, panels []Panel) error {
	if len(panels) == 0 {
		return fmt.Errorf("drawing %s: no panels", path)
	}
	columns := 1
	if len(panels) > 3 {
		columns = 2
	}
	rows := (len(panels) + columns - 1) / columns
	grid := make([][]*plot.Plot, rows)
	for i := range grid {
		grid[i] = make([]*plot.Plot, columns)
	}
	for i, panel := range panels {
		p, err := drawPanel(panel)
		if err != nil {
			return fmt.Errorf("drawing %s, panel %q: %w", path, panel.Title, err)
		}
		grid[i/columns][i%columns] = p
	}
	width := vg.Length(columns) * panelWidth
	if columns == 1 {
		width = 7.5 * vg.Inch
	}
	return writePlots(path, grid, width, vg.Length(rows)*panelHeight)
}

func drawPanel(panel Panel) (*plot.Plot, error) {
	p := newPlot(panel.Title, panel.XLabel, panel.YLabel)
	var meaning legend
	for i, s := range panel.Series {
		if err := addSeries(p, s, palette[i%len(palette)], &meaning); err != nil {
			return nil, fmt.Errorf("series %q: %w", s.Label, err)
		}
	}
	if math.IsInf(p.X.Min, 0) || math.IsInf(p.Y.Min, 0) {
		return nil, errors.New("no values")
	}
	p.X.Tick.Marker = ticks{most: 8, whole: true}
	if p.X.Min == p.X.Max {
		p.X.Min, p.X.Max = p.X.Min-0.5, p.X.Max+0.5
	}
	widen(&p.Y, 0.06)
	if len(meaning) > 1 {
		meaning.above(p)
	}
	return p, nil
}

func addSeries(p *plot.Plot, s Series, c color.RGBA, meaning *legend) error {
	if len(s.X) != len(s.Y) && s.Style != Level {
		return fmt.Errorf("%d x values and %d y values", len(s.X), len(s.Y))
	}
	if len(s.Y) == 0 {
		return nil
	}
	if s.Style == Level {
		f := plotter.NewFunction(func(float64) float64 { return s.Y[0] })
		f.LineStyle = draw.LineStyle{Color: c, Width: vg.Points(1.2), Dashes: []vg.Length{vg.Points(5), vg.Points(3)}}
		p.Add(f)
		p.Y.Min, p.Y.Max = min(p.Y.Min, s.Y[0]), max(p.Y.Max, s.Y[0])
		meaning.add(s.Label, f)
		return nil
	}
	shown, window := s.smoothed()
	if err := addIntervals(p, shown, c); err != nil {
		return err
	}
	label := s.Label
	if window > 0 {
		faint, err := plotter.NewLine(points(s.X, s.Y))
		if err != nil {
			return err
		}
		faint.LineStyle = draw.LineStyle{Color: blend(c, 0.35), Width: vg.Points(0.7)}
		p.Add(faint)
		meaning.add(label, faint)
		label = fmt.Sprintf("%s, running mean (%d)", label, window)
	}
	line, err := plotter.NewLine(points(shown.X, shown.Y))
	if err != nil {
		return err
	}
	line.LineStyle = draw.LineStyle{Color: c, Width: vg.Points(1.7)}
	p.Add(line)
	if !s.dotted() {
		meaning.add(label, line)
		return nil
	}
	dots, err := plotter.NewScatter(points(s.X, s.Y))
	if err != nil {
		return err
	}
	dots.GlyphStyle = draw.GlyphStyle{Color: c, Radius: vg.Points(3), Shape: draw.CircleGlyph{}}
	p.Add(dots)
	meaning.add(label, line, dots)
	return nil
}

// addIntervals draws the intervals below the values.
func addIntervals(p *plot.Plot, s Series, c color.RGBA) error {
	if s.Low == nil {
		return nil
	}
	if s.dotted() {
		errs := make(plotter.YErrors, len(s.Y))
		for i := range errs {
			errs[i].Low, errs[i].High = s.Low[i]-s.Y[i], s.High[i]-s.Y[i]
		}
		bars, err := plotter.NewYErrorBars(struct {
			plotter.XYs
			plotter.YErrors
		}{points(s.X, s.Y), errs})
		if err != nil {
			return err
		}
		bars.LineStyle = draw.LineStyle{Color: blend(c, 0.6), Width: vg.Points(1)}
		bars.CapWidth = vg.Points(3)
		p.Add(bars)
		return nil
	}
	edge, back := points(s.X, s.High), points(s.X, s.Low)
	slices.Reverse(back)
	p.Add(&plotter.Polygon{XYs: []plotter.XYs{append(edge, back...)}, Color: blend(c, 0.16)})
	return nil
}

func points(x, y []float64) plotter.XYs {
	out := make(plotter.XYs, len(x))
	for i := range x {
		out[i] = plotter.XY{X: x[i], Y: y[i]}
	}
	return out
}

// smoothLeast is the shortest window of a running mean. Series shorter than two windows are not smoothed.
const smoothLeast = 5

// dotted reports whether the values of the series are dots.
func (s Series) dotted() bool { return s.Style == Points || len(s.Y) == 1 }

// smoothed returns the running mean of a noisy series and of its intervals, over a window of values. Others stay as they
// are; their window is 0.
func (s Series) smoothed() (mean Series, window int) {
	if s.Style != Smooth || len(s.Y) < 2*smoothLeast {
		return s, 0
	}
	window = max(smoothLeast, len(s.Y)/15)
	mean = s
	mean.Y = runningMean(s.Y, window)
	if s.Low != nil {
		mean.Low, mean.High = runningMean(s.Low, window), runningMean(s.High, window)
	}
	return mean, window
}

// runningMean averages up to window values that end at each position. It never looks ahead, so the curve of a longer run
// starts like that of a shorter one.
func runningMean(y []float64, window int) []float64 {
	out := make([]float64, len(y))
	sums := make([]float64, len(y)+1)
	for i, v := range y {
		sums[i+1] = sums[i] + v
		from := max(0, i+1-window)
		out[i] = (sums[i+1] - sums[from]) / float64(i+1-from)
	}
	return out
}

// blend mixes c with white. Unlike transparency it looks the same in every SVG viewer.
func blend(c color.RGBA, fraction float64) color.RGBA {
	mix := func(v uint8) uint8 { return uint8(math.Round(255 - fraction*(255-float64(v)))) }
	return color.RGBA{mix(c.R), mix(c.G), mix(c.B), 0xff}
}

// widen extends an axis beyond the data by a fraction of its range, or by a fixed amount if the range is empty.
func widen(a *plot.Axis, fraction float64) {
	if a.Max-a.Min <= 1e-9*max(math.Abs(a.Max), math.Abs(a.Min)) {
		half := 0.05 * math.Abs(a.Max)
		if half == 0 {
			a.Min, a.Max = 0, 1
			return
		}
		a.Min, a.Max = a.Min-half, a.Max+half
		return
	}
	span := (a.Max - a.Min) * fraction
	a.Min, a.Max = a.Min-span, a.Max+span
}

// newPlot returns an empty plot in this package's style.
func newPlot(title, xLabel, yLabel string) *plot.Plot {
	p := plot.New()
	sans := func(s *text.Style, size vg.Length) {
		s.Font.Variant = "Sans"
		s.Font.Size = size
		s.Color = ink
	}
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, xLabel, yLabel
	p.Title.Padding = vg.Points(4)
	sans(&p.Title.TextStyle, vg.Points(11))
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		sans(&a.Label.TextStyle, vg.Points(9.5))
		sans(&a.Tick.Label, vg.Points(8.5))
		a.Label.Padding = vg.Points(3)
		a.Padding = 0
		a.Color, a.Tick.Color = ink, ink
		a.Tick.Length = vg.Points(4)
		a.Tick.Marker = ticks{most: 8}
	}
	p.Y.Tick.Marker = ticks{most: 6}
	sans(&p.Legend.TextStyle, vg.Points(8.5))
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = pale, pale
	grid.Horizontal.Width, grid.Vertical.Width = vg.Points(0.5), vg.Points(0.5)
	p.Add(grid)
	return p
}

// ticks are round numbers (1, 2 or 5 times a power of ten), about most of them.
type ticks struct {
	most  int
	whole bool     // integers only
	upTo  *float64 // the largest tick; nil = the end of the axis
}

// Ticks implements [plot.Ticker].
func (t ticks) Ticks(low, high float64) []plot.Tick {
	span := high - low
	if !(span > 0) || math.IsInf(span, 0) {
		return []plot.Tick{{Value: low, Label: fmt.Sprintf("%.4g", low)}}
	}
	step := math.Pow(10, math.Floor(math.Log10(span/float64(t.most))))
	for _, factor := range []float64{1, 2, 5, 10} {
		if span/(step*factor) <= float64(t.most) {
			step *= factor
			break
		}
	}
	if t.whole {
		step = max(1, step)
	}
	// One power of ten for all ticks: 2e-05 next to 0.0001 is hard to compare.
	largest := max(math.Abs(low), math.Abs(high))
	scientific := largest < 1e-3 || largest >= 1e7
	decimals := max(0, int(-math.Floor(math.Log10(step)+1e-9)))
	if t.upTo != nil {
		high = min(high, *t.upTo)
	}
	var out []plot.Tick
	for i := math.Ceil(low/step - 1e-9); i*step <= high+1e-9*span; i++ {
		v := i * step
		label := fmt.Sprintf("%.*f", decimals, v)
		switch {
		case i == 0:
			label = "0"
		case scientific:
			label = scientificLabel(v, step)
		case decimals == 0:
			label = Count(int64(math.Round(v)))
		}
		out = append(out, plot.Tick{Value: v, Label: label})
	}
	return out
}

// scientificLabel formats 3e-5, not 3e-05, with as many digits as ticks one step apart need.
func scientificLabel(v, step float64) string {
	exponent := func(v float64) int { return int(math.Floor(math.Log10(math.Abs(v)) + 1e-9)) }
	mantissa, power, _ := strings.Cut(strconv.FormatFloat(v, 'e', max(0, exponent(v)-exponent(step)), 64), "e")
	if strings.Contains(mantissa, ".") {
		mantissa = strings.TrimRight(strings.TrimRight(mantissa, "0"), ".")
	}
	n, _ := strconv.Atoi(power)
	return mantissa + "e" + strconv.Itoa(n)
}

// writePlots draws a grid of plots and writes it as .png and .svg. A nil plot leaves its cell empty.
func writePlots(path string, grid [][]*plot.Plot, width, height vg.Length) error {
	base, ok := strings.CutSuffix(path, ".png")
	if !ok {
		return fmt.Errorf("drawing %s: the name must end in .png", path)
	}
	tiles := draw.Tiles{
		Rows: len(grid), Cols: len(grid[0]), PadX: 0.3 * vg.Inch, PadY: 0.25 * vg.Inch,
		PadTop: margin, PadBottom: margin, PadLeft: margin, PadRight: margin,
	}
	png := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(dotsPerInch))}
	svg := vgsvg.New(width, height)
	for _, out := range []struct {
		canvas vg.CanvasWriterTo
		path   string
	}{{png, base + ".png"}, {svg, base + ".svg"}} {
		// An opaque background keeps the text readable on dark pages.
		c := draw.New(out.canvas)
		c.FillPolygon(color.White, []vg.Point{c.Min, {X: c.Max.X, Y: c.Min.Y}, c.Max, {X: c.Min.X, Y: c.Max.Y}})
		canvases := plot.Align(grid, tiles, c)
		for i, row := range grid {
			for j, p := range row {
				if p != nil {
					p.Draw(canvases[i][j])
				}
			}
		}
		var buf bytes.Buffer
		if _, err := out.canvas.WriteTo(&buf); err != nil {
			return fmt.Errorf("drawing %s: %w", filepath.Base(out.path), err)
		}
		if err := outfile.Write(out.path, buf.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
