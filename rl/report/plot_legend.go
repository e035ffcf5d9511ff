package report

import (
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// legend says what the colours of a panel mean: a label each, with how its curve looks.
type legend []entry

type entry struct {
	label string
	looks []plot.Thumbnailer
}

func (l *legend) add(label string, looks ...plot.Thumbnailer) { *l = append(*l, entry{label, looks}) }

// A legend of few labels stands at the right, one of more in two columns.
const (
	legendColumn = 3
	legendRow    = 0.085 // of the height of a panel's axis, that a label takes
)

// above draws the legend over the data, not on them: the axis of y gets longer, without more numbers at it.
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

// legendPart is a column of a legend, drawn like a curve.
type legendPart struct{ plot.Legend }

// Plot implements [plot.Plotter].
func (l legendPart) Plot(c draw.Canvas, _ *plot.Plot) { l.Draw(c) }
