package report

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"

	"github.com/rltrain/rltrain/rl"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
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

// Bins sorts predictions into the bins of the expected calibration error.
func Bins(rows []rl.Sureness) []Bin {
	bins := make([]Bin, rl.ECEBins)
	for i := range bins {
		bins[i].Low, bins[i].High = float64(i)/rl.ECEBins, float64(i+1)/rl.ECEBins
	}
	for _, row := range rows {
		b := &bins[rl.ConfidenceBin(row.P)]
		b.Count++
		b.Confidence += float64(row.P)
		if row.Right {
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
	blue := blend(palette[0], 0.6)
	bars, counts := boxes(blue), boxes(blue)
	gaps := &plotter.Polygon{LineStyle: draw.LineStyle{Color: palette[1], Width: vg.Points(1.3)}}
	most := 0
	for _, b := range bins {
		if b.Count == 0 {
			continue
		}
		most = max(most, b.Count)
		inset := 0.03 * (b.High - b.Low)
		bars.XYs = append(bars.XYs, box(b.Low, b.High, 0, b.Accuracy))
		gaps.XYs = append(gaps.XYs, box(b.Low+inset, b.High-inset, b.Accuracy, b.Confidence))
		counts.XYs = append(counts.XYs, box(b.Low, b.High, 0, float64(b.Count)))
	}
	diagonal, err := plotter.NewLine(plotter.XYs{{X: 0, Y: 0}, {X: 1, Y: 1}})
	if err != nil {
		return fmt.Errorf("drawing %s: %w", path, err)
	}
	diagonal.LineStyle = draw.LineStyle{Color: ink, Width: vg.Points(1), Dashes: []vg.Length{vg.Points(4), vg.Points(3)}}
	top.Add(bars, gaps, diagonal)
	top.Legend.Top, top.Legend.Left, top.Legend.XOffs = true, true, vg.Points(6)
	top.Legend.Add("accuracy", bars)
	top.Legend.Add("gap to confidence", gaps)
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
	style := p.X.Tick.Label
	style.XAlign, style.YAlign = draw.XCenter, draw.YCenter
	numbers := &plotter.Labels{}
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
			x := float64(j)
			p.Add(boxes(tint, box(x-0.5, x+0.5, y-0.5, y+0.5)))
			if c != 0 && !small {
				if style.Color = ink; fraction > 0.5 {
					style.Color = color.White
				}
				numbers.XYs, numbers.Labels = append(numbers.XYs, plotter.XY{X: x, Y: y}), append(numbers.Labels, Count(int64(c)))
				numbers.TextStyle = append(numbers.TextStyle, style)
			}
		}
	}
	p.Add(numbers)
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
	if err := os.MkdirAll(plots, 0o755); err != nil {
		return fmt.Errorf("drawing: %w", err)
	}
	if err := Reliability(filepath.Join(plots, "reliability.png"), Bins(rl.SurenessOf(truth, probs))); err != nil {
		return err
	}
	return Confusion(filepath.Join(plots, "confusion.png"), labels, counts)
}

// boxes are filled boxes with white edges.
func boxes(fill color.Color, rings ...plotter.XYs) *plotter.Polygon {
	return &plotter.Polygon{XYs: rings, Color: fill, LineStyle: draw.LineStyle{Color: color.White, Width: vg.Points(0.7)}}
}

func box(x0, x1, y0, y1 float64) plotter.XYs {
	return plotter.XYs{{X: x0, Y: y0}, {X: x1, Y: y0}, {X: x1, Y: y1}, {X: x0, Y: y1}}
}
