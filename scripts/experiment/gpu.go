package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/rl/report"
)

// gpuResults is the output of scripts/gpu/run.py, with the fields that the tables show.
type gpuResults struct {
	GPU struct {
		Name   string `json:"name"`
		Driver string `json:"driver_version"`
		Memory string `json:"memory.total"`
	} `json:"gpu"`
	Cases map[string]gpuCase `json:"cases"`
}

type gpuCase struct {
	Ours   gpuSide            `json:"ours"`
	Peer   gpuSide            `json:"peer"`
	Static gpuSide            `json:"peer_static"` // with a static cache, compiled
	Ways   map[string]gpuSide `json:"peer_ways"`   // of one step; Peer is the fastest
	Ratio  float64            `json:"ratio_to_peer"`
	Memory float64            `json:"memory_of_peer"` // above what was allocated before the case
	Goal   float64            `json:"goal"`           // for the ratio; 0 if there is none
	Most   float64            `json:"memory_goal"`
}

// gpuSide is one side of a case. Its times are 0 if it was not measured or failed.
type gpuSide struct {
	Case     string            `json:"case"`
	Shape    string            `json:"shape"`
	Batch    int               `json:"batch"`
	Best     float64           `json:"best_s"`
	Step     float64           `json:"decode_step_ms"`
	GBPerS   float64           `json:"gb_s"`
	TFLOP    float64           `json:"tflop_s"`
	Copy     float64           `json:"copy_gb_s"` // for the case "device"
	Product  int               `json:"product"`
	Versions map[string]string `json:"versions"`
	GPU      struct {
		Extra float64 `json:"extra_mb"`
	} `json:"gpu"`
}

func (g gpuResults) markdown() string {
	device := g.Cases["device"].Ours
	text := fmt.Sprintf("%s, %s, driver %s. A large copy moves %.0f GB/s there, read and written; a product of bf16 matrices of %d rows does %.0f TFLOP/s. Python: %s.\n\n",
		g.GPU.Name, g.GPU.Memory, g.GPU.Driver, device.Copy, device.Product, device.TFLOP, g.versions())
	var decoding, steps [][]string
	for _, name := range slices.SortedFunc(maps.Keys(g.Cases), func(a, b string) int {
		x, y := g.Cases[a].Ours, g.Cases[b].Ours
		return cmp.Or(cmp.Compare(x.Case, y.Case), -cmp.Compare(x.Shape, y.Shape), cmp.Compare(x.Batch, y.Batch), cmp.Compare(a, b))
	}) {
		switch c := g.Cases[name]; {
		case name == "device":
		case strings.HasPrefix(name, "generate"):
			decoding = append(decoding, []string{name, shown("%.2f", c.Ours.Step), shown("%.0f", c.Ours.GBPerS), share(c.Ours.GBPerS, device.Copy),
				shown("%.2f", c.Peer.Step), shown("%.2f", c.Static.Step), shown("%.1f×", c.Ratio), goal("%.0f×", c.Goal), holds(c.Ratio, c.Goal)})
		default:
			steps = append(steps, []string{name, shown("%.1f", 1e3*c.Ours.Best), shown("%.1f", c.Ours.TFLOP), share(c.Ours.TFLOP, device.TFLOP),
				shown("%.1f", 1e3*c.Peer.Best), shown("%.1f×", c.Ratio), goal("%.0f×", c.Goal), holds(c.Ratio, c.Goal),
				shown("%.0f", c.Ours.GPU.Extra), shown("%.0f", c.Peer.GPU.Extra), shown("%.2f", c.Memory), goal("%.1f", c.Most), holds(c.Most, c.Memory)})
		}
	}
	text += "One token step of generation, after the prompts. GB/s counts the weights and cache that a step reads:\n\n"
	text += report.MarkdownTable([]string{"case", "rltrain, ms", "GB/s", "of the copy", "Python, ms", "compiled, static cache", "ratio", "goal", "holds"}, decoding)
	text += "\nTraining steps. TFLOP/s counts the necessary products; memory is what the allocator adds during the step:\n\n"
	return text + report.MarkdownTable([]string{"case", "rltrain, ms", "TFLOP/s", "of the product", "Python, ms", "ratio", "goal", "holds",
		"MiB", "Python, MiB", "ratio", "goal", "holds"}, steps)
}

// versions lists the versions of the peers' packages.
func (g gpuResults) versions() string {
	found := map[string]bool{}
	for _, c := range g.Cases {
		for name, version := range c.Peer.Versions {
			found[name+" "+version] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(found)), ", ")
}

// shown formats a figure; 0 means not measured.
func shown(format string, figure float64) string {
	if figure == 0 {
		return "not measured"
	}
	return fmt.Sprintf(format, figure)
}

// share is part/whole in percent.
func share(part, whole float64) string {
	if part == 0 || whole == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*part/whole)
}

func goal(format string, figure float64) string {
	if figure == 0 {
		return ""
	}
	return fmt.Sprintf(format, figure)
}

// holds reports whether a measured figure reaches a minimum.
func holds(figure, least float64) string {
	switch {
	case figure == 0 || least == 0:
		return ""
	case figure >= least:
		return "yes"
	default:
		return "no"
	}
}
