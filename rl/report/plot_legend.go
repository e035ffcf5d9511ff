package report

import (
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// legend lists the labels of a panel, each with its line style.
type legend []entry

type entry struct {
	label string
	looks []plot.Thumbnailer
}

func (l *legend) add(label string, looks ...plot.Thumbnailer) { *l = append(*l, entry{label, looks}) }

// A legend has two columns if it has more than legendColumn labels.
const (
	legendColumn = 3
	legendRow    = 0.085 // height of a label, as a fraction of the y axis
)

// above draws the legend above the data: it extends the y axis without adding ticks.
func (l legend) above(p *plot.Plot) {
	columns := [][]entry{l}
	if len(l) > legendColumn {
		half := (len(l) + 1) / 2
		columns = [][]entry{l[:half], l[half:]}
	}
	for i, column := range columns {
		part := plot.NewLegend()
		part.TextStyle, part.Padding = p.Legend.TextStyle, vg.Points(3)
		part.Top, part.Left = true, i < len(columns)-1
		part.XOffs, part.YOffs = -vg.Points(6), -vg.Points(2)
		if part.Left {
			part.XOffs = -part.XOffs
		}
		for _, e := range column {
			part.Add(e.label, e.looks...)
		}
		p.Add(legendPart{part})
	}
	data := p.Y.Max
	p.Y.Tick.Marker = ticks{most: 6, upTo: &data}
	room := legendRow*float64(len(columns[0])) + 0.02
	p.Y.Max += (p.Y.Max - p.Y.Min) * room / (1 - room)
}

// legendPart is a column of a legend that plots like a curve.
type legendPart struct{ plot.Legend }

// Plot implements [plot.Plotter].
func (l legendPart) Plot(c draw.Canvas, _ *plot.Plot) { l.Draw(c) }
