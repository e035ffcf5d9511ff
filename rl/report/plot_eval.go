package report

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Bin is one interval of confidence in a reliability diagram. Confidence and Accuracy are means over Count predictions,
// undefined if Count is 0.
type Bin struct {
	Low, High            float64
	Confidence, Accuracy float64
	Count                int
}

// Bins sorts predictions into 15 bins of equal width, (low, high], as for the expected calibration error (Guo et al. 2017).
// confidence is the probability of the predicted class, in [0,1]; correct has the same length.
func Bins(confidence []float32, correct []bool) []Bin {
	const n = 15
	bins := make([]Bin, n)
	for i := range bins {
		bins[i].Low, bins[i].High = float64(i)/n, float64(i+1)/n
	}
	for i, c := range confidence {
		at := 0
		for at < n-1 && c > float32(bins[at].High) {
			at++
		}
		b := &bins[at]
		b.Count++
		b.Confidence += float64(c)
		if correct[i] {
			b.Accuracy++
		}
	}
	for i := range bins {
		if count := float64(bins[i].Count); count > 0 {
			bins[i].Confidence /= count
			bins[i].Accuracy /= count
		}
	}
	return bins
}

// Reliability draws a reliability diagram (DeGroot and Fienberg 1983): accuracy over confidence, where the diagonal is
// perfect calibration, and below it the number of predictions per bin. It writes path (.png) and the same as .svg.
func Reliability(path string, bins []Bin) error {
	if len(bins) == 0 {
		return fmt.Errorf("drawing %s: no bins", path)
	}
	total, ece := 0, 0.0
	for _, b := range bins {
		total += b.Count
		ece += float64(b.Count) * math.Abs(b.Accuracy-b.Confidence)
	}
	title := "Reliability"
	if total > 0 {
		title = fmt.Sprintf("Reliability (ECE %.4f, n = %s)", ece/float64(total), Count(int64(total)))
	}
	top := newPlot(title, "", "accuracy")
	var bars, counts rectangles
	var gaps outlines
	blue := blend(palette[0], 0.6)
	most := 0
	for _, b := range bins {
		if b.Count == 0 {
			continue
		}
		most = max(most, b.Count)
		bars = append(bars, rectangle{b.Low, b.High, 0, b.Accuracy, blue})
		gaps = append(gaps, rectangle{b.Low, b.High, min(b.Accuracy, b.Confidence), max(b.Accuracy, b.Confidence), palette[1]})
		counts = append(counts, rectangle{b.Low, b.High, 0, float64(b.Count), blue})
	}
	diagonal, err := plotter.NewLine(plotter.XYs{{X: 0, Y: 0}, {X: 1, Y: 1}})
	if err != nil {
		return fmt.Errorf("drawing %s: %w", path, err)
	}
	diagonal.LineStyle = draw.LineStyle{Color: ink, Width: vg.Points(1), Dashes: []vg.Length{vg.Points(4), vg.Points(3)}}
	top.Add(bars, gaps, diagonal)
	top.Legend.Top, top.Legend.Left, top.Legend.XOffs = true, true, vg.Points(6)
	top.Legend.Add("accuracy", swatch(blue))
	top.Legend.Add("gap to confidence", frame(palette[1]))
	top.Legend.Add("perfectly calibrated", diagonal)
	top.X.Min, top.X.Max, top.Y.Min, top.Y.Max = 0, 1, 0, 1
	top.X.Tick.Marker, top.Y.Tick.Marker = ticks{most: 10}, ticks{most: 10}

	bottom := newPlot("", "confidence", "predictions")
	bottom.Add(counts)
	bottom.X.Min, bottom.X.Max, bottom.Y.Min, bottom.Y.Max = 0, 1, 0, 1.08*float64(max(1, most))
	bottom.X.Tick.Marker, bottom.Y.Tick.Marker = ticks{most: 10}, ticks{most: 7}
	return writePlots(path, [][]*plot.Plot{{top}, {bottom}}, 5.6*vg.Inch, 8*vg.Inch)
}

// Confusion draws a confusion matrix: counts[i][j] rows of true class i were predicted as class j. Colours are fractions
// of a row, so that small classes show too. Above 20 classes cells have no numbers, which keeps the picture below
// 1,600 pixels. It writes path (.png) and the same as .svg.
func Confusion(path string, classes []string, counts [][]int) error {
	n := len(classes)
	if n == 0 || len(counts) != n {
		return fmt.Errorf("drawing %s: %d classes and %d rows of counts", path, n, len(counts))
	}
	small := n > manyClasses
	title := "Confusion matrix (colour: fraction of the true class)"
	if small {
		title = "Confusion matrix (blue: correct, red: wrong; darker = larger fraction of the true class)"
	}
	p := newPlot(title, "predicted", "true")
	var cells rectangles
	var numbers []cellText
	for i, row := range counts {
		if len(row) != n {
			return fmt.Errorf("drawing %s: row %d has %d counts for %d classes", path, i, len(row), n)
		}
		sum := 0
		for _, c := range row {
			sum += c
		}
		y := float64(n - 1 - i) // the first class on top
		for j, c := range row {
			if c == 0 && small {
				continue
			}
			fraction := float64(c) / float64(max(1, sum))
			tint := blend(palette[0], fraction)
			if small && c != 0 { // 1 of 40 would be invisible
				tint = blend(palette[0], 0.2+0.8*fraction)
				if i != j {
					tint = blend(palette[1], 0.3+0.7*fraction)
				}
			}
			cells = append(cells, rectangle{float64(j) - 0.5, float64(j) + 0.5, y - 0.5, y + 0.5, tint})
			if c != 0 && !small {
				numbers = append(numbers, cellText{float64(j), y, Count(int64(c)), fraction > 0.5})
			}
		}
	}
	style := p.X.Tick.Label
	style.XAlign, style.YAlign = draw.XCenter, draw.YCenter
	p.Add(cells, cellTexts{numbers, style})
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = -0.5, float64(n)-0.5, -0.5, float64(n)-0.5

	var across, down plot.ConstantTicks
	for i, name := range classes {
		across = append(across, plot.Tick{Value: float64(i), Label: name})
		down = append(down, plot.Tick{Value: float64(n - 1 - i), Label: name})
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = across, down
	p.X.Tick.Label.Rotation = math.Pi / 4
	p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = draw.XRight, draw.YCenter
	size := vg.Length(max(4, 0.42*float64(n))) * vg.Inch
	if small {
		p.X.Tick.Label.Rotation = math.Pi / 2
		size = 8.4 * vg.Inch
		for _, a := range []*plot.Axis{&p.X, &p.Y} {
			a.Tick.Label.Font.Size = min(a.Tick.Label.Font.Size, 0.8*size/vg.Length(n))
			a.Tick.Length = vg.Points(2)
		}
	}
	return writePlots(path, [][]*plot.Plot{{p}}, size+1.9*vg.Inch, size+1.7*vg.Inch)
}

// manyClasses is the largest number of classes whose cells have numbers.
const manyClasses = 20

// DrawEvaluation draws the reliability diagram and the confusion matrix of an evaluation into the folder plots, which it
// creates if needed. probs is [len(truth)][classes]; counts is as for [Confusion].
func DrawEvaluation(plots string, labels []string, truth []int, probs [][]float32, counts [][]int) error {
	confidence, correct := make([]float32, len(probs)), make([]bool, len(probs))
	for i, p := range probs {
		best := 0
		for j := range p {
			if p[j] > p[best] {
				best = j
			}
		}
		confidence[i], correct[i] = p[best], best == truth[i]
	}
	if err := os.MkdirAll(plots, 0o755); err != nil {
		return fmt.Errorf("drawing: %w", err)
	}
	if err := Reliability(filepath.Join(plots, "reliability.png"), Bins(confidence, correct)); err != nil {
		return err
	}
	return Confusion(filepath.Join(plots, "confusion.png"), labels, counts)
}

// rectangle is a filled box in data coordinates.
type rectangle struct {
	x0, x1, y0, y1 float64
	fill           color.RGBA
}

// outlines are empty boxes with a diagonal, which leave the bars below visible.
type outlines []rectangle

// Plot implements [plot.Plotter].
func (rs outlines) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	inset := vg.Points(1.5)
	for _, r := range rs {
		frame(r.fill).draw(&c, vg.Point{X: x(r.x0) + inset, Y: y(r.y0)}, vg.Point{X: x(r.x1) - inset, Y: y(r.y1)})
	}
}

// frame is an outline in a legend.
type frame color.RGBA

// Thumbnail implements [plot.Thumbnailer].
func (f frame) Thumbnail(c *draw.Canvas) { f.draw(c, c.Min, c.Max) }

func (f frame) draw(c *draw.Canvas, low, high vg.Point) {
	edge := draw.LineStyle{Color: color.RGBA(f), Width: vg.Points(1.3)}
	c.StrokeLines(edge, []vg.Point{low, {X: high.X, Y: low.Y}, high, {X: low.X, Y: high.Y}, low}, []vg.Point{low, high})
}

type rectangles []rectangle

// Plot implements [plot.Plotter].
func (rs rectangles) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	edge := draw.LineStyle{Color: color.White, Width: vg.Points(0.7)}
	for _, r := range rs {
		corners := []vg.Point{{X: x(r.x0), Y: y(r.y0)}, {X: x(r.x1), Y: y(r.y0)}, {X: x(r.x1), Y: y(r.y1)}, {X: x(r.x0), Y: y(r.y1)}}
		c.FillPolygon(r.fill, corners)
		c.StrokeLines(edge, append(corners, corners[0]))
	}
}

// swatch is a colour in a legend.
type swatch color.RGBA

// Thumbnail implements [plot.Thumbnailer].
func (s swatch) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(color.RGBA(s), []vg.Point{c.Min, {X: c.Max.X, Y: c.Min.Y}, c.Max, {X: c.Min.X, Y: c.Max.Y}})
}

// cellText is a number in a cell of the confusion matrix.
type cellText struct {
	x, y  float64
	text  string
	light bool // on a dark cell
}

type cellTexts struct {
	cells []cellText
	style text.Style
}

// Plot implements [plot.Plotter].
func (t cellTexts) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	for _, cell := range t.cells {
		style := t.style
		if cell.light {
			style.Color = color.White
		}
		c.FillText(style, vg.Point{X: x(cell.x), Y: y(cell.y)}, cell.text)
	}
}
