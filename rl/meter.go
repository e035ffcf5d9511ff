package rl

import (
	"maps"
	"math"
)

// Meter collects metrics between two rows. Each has a kind: mean, maximum, minimum, total or last value. It survives JSON
// exactly. It ignores values that are not finite or make a sum infinite.
type Meter map[string]Figure

// Figure is one entry of a Meter.
type Figure struct {
	Kind  FigureKind `json:"kind"`
	Value float64    `json:"value"` // the sum, for a mean
	Count float64    `json:"count"` // the divisor of a mean
}

// FigureKind says how two values combine.
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

// Max keeps the largest value.
func (m Meter) Max(name string, value float64) { m.add(name, Figure{Kind: maxFigure, Value: value}) }

// Min keeps the smallest value.
func (m Meter) Min(name string, value float64) { m.add(name, Figure{Kind: minFigure, Value: value}) }

// Total adds values up.
func (m Meter) Total(name string, value float64) {
	m.add(name, Figure{Kind: totalFigure, Value: value})
}

// Last keeps the last value.
func (m Meter) Last(name string, value float64) { m.add(name, Figure{Kind: lastFigure, Value: value}) }

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

// Get is the value of a figure, 0 if there is none.
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
