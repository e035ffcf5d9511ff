package rl

import (
	"maps"
	"math"
)

// Meter collects the figures of a run between two lines of its metrics. Each figure has a kind of its own: a
// mean over whatever was counted, a greatest or a least value, a total, or the last one. It encodes to JSON and comes back
// exactly, so that a resumed run writes what an uninterrupted one does. A value that is not finite, or that makes a
// sum infinite, is no measurement and is left out.
type Meter map[string]Figure

// Figure is one entry of a Meter.
type Figure struct {
	Kind  FigureKind `json:"kind"`
	Value float64    `json:"value"` // of a mean the sum
	Count float64    `json:"count"` // of a mean what it is divided by
}

// FigureKind says how two measurements become one.
type FigureKind string

const (
	meanFigure  FigureKind = "mean"
	maxFigure   FigureKind = "max"
	minFigure   FigureKind = "min"
	totalFigure FigureKind = "total"
	lastFigure  FigureKind = "last"
)

// Mean adds a sum over count things.
func (m Meter) Mean(name string, sum, count float64) {
	if count > 0 {
		m.add(name, Figure{meanFigure, sum, count})
	}
}

// Max keeps the greatest value.
func (m Meter) Max(name string, value float64) { m.add(name, Figure{maxFigure, value, 1}) }

// Min keeps the least value.
func (m Meter) Min(name string, value float64) { m.add(name, Figure{minFigure, value, 1}) }

// Total adds values up.
func (m Meter) Total(name string, value float64) { m.add(name, Figure{totalFigure, value, 1}) }

// Last keeps the value that was measured last.
func (m Meter) Last(name string, value float64) { m.add(name, Figure{lastFigure, value, 1}) }

// Merge adds the figures of another meter.
func (m Meter) Merge(other Meter) {
	for name, f := range other {
		m.add(name, f)
	}
}

func (m Meter) add(name string, f Figure) {
	before, known := m[name]
	if known && before.Kind == f.Kind {
		switch f.Kind {
		case meanFigure:
			f.Value, f.Count = f.Value+before.Value, f.Count+before.Count
		case maxFigure:
			f.Value = max(f.Value, before.Value)
		case minFigure:
			f.Value = min(f.Value, before.Value)
		case totalFigure:
			f.Value += before.Value
		}
	}
	if !math.IsNaN(f.Value) && !math.IsInf(f.Value, 0) {
		m[name] = f
	}
}

// Get is the value of a figure, 0 where there is none.
func (m Meter) Get(name string) float64 {
	f := m[name]
	if f.Kind == meanFigure {
		return f.Value / f.Count
	}
	return f.Value
}

// Fill writes all figures into a row of metrics.
func (m Meter) Fill(row map[string]any) {
	for name := range m {
		row[name] = m.Get(name)
	}
}

// Clone is a copy.
func (m Meter) Clone() Meter { return maps.Clone(m) }
