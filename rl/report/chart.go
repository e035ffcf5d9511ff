package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"strings"
)

// Size of a chart in SVG units.
const (
	chartWidth, chartHeight                           = 560.0, 250.0
	chartLeft, chartRight, chartTop, chartBottom      = 80.0, 12.0, 10.0, 34.0
	chartInnerWidth, chartInnerHeight                 = chartWidth - chartLeft - chartRight, chartHeight - chartTop - chartBottom
	bandClass, lineClass, faintClass, dotClass, level = "band", "line", "faint", "dot", "level"
)

// axes map values to positions in a chart.
type axes struct{ x0, x1, y0, y1 float64 }

func (a axes) x(v float64) float64 { return chartLeft + chartInnerWidth*(v-a.x0)/(a.x1-a.x0) }
func (a axes) y(v float64) float64 {
	return chartTop + chartInnerHeight*(1-(v-a.y0)/(a.y1-a.y0))
}

// axesOf returns axes that fit all series of a panel.
func axesOf(p Panel) axes {
	a := axes{math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)}
	for _, s := range p.Series {
		for _, list := range [][]float64{s.Y, s.Low, s.High} {
			for _, v := range list {
				a.y0, a.y1 = min(a.y0, v), max(a.y1, v)
			}
		}
		if s.Style != Level {
			for _, v := range s.X {
				a.x0, a.x1 = min(a.x0, v), max(a.x1, v)
			}
		}
	}
	if a.x0 > a.x1 {
		a.x0, a.x1 = 0, 1
	}
	if a.x0 == a.x1 {
		a.x0, a.x1 = a.x0-0.5, a.x1+0.5
	}
	room := 0.06 * (a.y1 - a.y0)
	if a.y1-a.y0 <= 1e-9*max(math.Abs(a.y0), math.Abs(a.y1)) {
		if room = 0.05 * math.Abs(a.y0); room == 0 {
			a.y1 = 1
		}
	}
	a.y0, a.y1 = a.y0-room, a.y1+room
	return a
}

// chart draws a panel as SVG. The page's stylesheet colours it: a class for each element, and s0 to s6 for the series.
func chart(p Panel) template.HTML {
	a := axesOf(p)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, chartWidth, chartHeight, html.EscapeString(p.Title+": "+p.YLabel))
	for _, t := range (ticks{most: 5}).Ticks(a.y0, a.y1) {
		y := a.y(t.Value)
		fmt.Fprintf(&b, `<path class="grid" d="M%g %.1fH%g"/><text class="tick" text-anchor="end" x="%g" y="%.1f">%s</text>`, chartLeft, y, chartWidth-chartRight, chartLeft-6, y+4, t.Label)
	}
	for _, t := range (ticks{most: 7, whole: true}).Ticks(a.x0, a.x1) {
		fmt.Fprintf(&b, `<text class="tick" text-anchor="middle" x="%.1f" y="%g">%s</text>`, a.x(t.Value), chartHeight-chartBottom+16, t.Label)
	}
	fmt.Fprintf(&b, `<text class="tick" text-anchor="end" x="%g" y="%g">%s</text>`, chartWidth-chartRight, chartHeight-3, html.EscapeString(p.XLabel))
	for i, s := range p.Series {
		drawSeries(&b, a, s, fmt.Sprintf("s%d", i%len(palette)))
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

func drawSeries(b *strings.Builder, a axes, s Series, whose string) {
	path := func(class, d string) { fmt.Fprintf(b, `<path class="%s %s" d="%s"/>`, class, whose, d) }
	if s.Style == Level {
		path(level, fmt.Sprintf("M%g %.1fH%g", chartLeft, a.y(s.Y[0]), chartWidth-chartRight))
		return
	}
	shown, window := s.smoothed()
	if window > 0 {
		path(faintClass, polyline(a, s.X, s.Y))
	}
	y, low, high := shown.Y, shown.Low, shown.High
	if low != nil && !s.dotted() {
		back := ""
		for i := len(s.X) - 1; i >= 0; i-- {
			back += fmt.Sprintf("L%.1f %.1f", a.x(s.X[i]), a.y(low[i]))
		}
		path(bandClass, polyline(a, s.X, high)+back+"Z")
	}
	path(lineClass, polyline(a, s.X, y))
	if !s.dotted() {
		return
	}
	for i := range y {
		interval := ""
		if low != nil {
			path("whisker", fmt.Sprintf("M%.1f %.1fV%.1f", a.x(s.X[i]), a.y(low[i]), a.y(high[i])))
			interval = fmt.Sprintf(" (%.4g to %.4g)", low[i], high[i])
		}
		fmt.Fprintf(b, `<circle class="%s %s" cx="%.1f" cy="%.1f" r="3.2"><title>%s</title></circle>`, dotClass, whose, a.x(s.X[i]), a.y(y[i]),
			html.EscapeString(fmt.Sprintf("%s, %.6g: %.4g%s", s.Label, s.X[i], y[i], interval)))
	}
}

// polyline joins the points. Above 1,000 points it draws only the minimum and maximum of each of 500 buckets.
func polyline(a axes, xs, ys []float64) string {
	const most = 1000
	var b strings.Builder
	point := func(i int) {
		op := "L"
		if b.Len() == 0 {
			op = "M"
		}
		fmt.Fprintf(&b, "%s%.1f %.1f", op, a.x(xs[i]), a.y(ys[i]))
	}
	if len(xs) <= most {
		for i := range xs {
			point(i)
		}
		return b.String()
	}
	buckets := most / 2
	for k := range buckets {
		from, to := k*len(xs)/buckets, (k+1)*len(xs)/buckets
		least, greatest := from, from
		for i := from; i < to; i++ {
			if ys[i] < ys[least] {
				least = i
			}
			if ys[i] > ys[greatest] {
				greatest = i
			}
		}
		point(min(least, greatest))
		point(max(least, greatest))
	}
	return b.String()
}

// Charts returns the panels worth a chart, those with two points or more.
func Charts(panels []Panel) []Panel { return slices.DeleteFunc(slices.Clone(panels), Panel.single) }

// single reports whether no series has two points: such a panel is a list of numbers, not a chart.
func (p Panel) single() bool {
	return !slices.ContainsFunc(p.Series, func(s Series) bool { return len(s.Y) > 1 })
}

// values lists the points of a single panel with their labels, intervals and steps.
func (p Panel) values() []Setting {
	var all []Setting
	for _, s := range p.Series {
		if len(s.Y) == 0 {
			continue
		}
		name := s.Label
		if s.Low != nil {
			name += fmt.Sprintf(", %.4g–%.4g", s.Low[0], s.High[0])
		}
		if s.Style != Level {
			name += fmt.Sprintf(", %s %.6g", p.XLabel, s.X[0])
		}
		all = append(all, Setting{name, fmt.Sprintf("%.4g", s.Y[0])})
	}
	return all
}
