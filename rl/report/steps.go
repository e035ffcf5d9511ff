package report

import (
	"fmt"
	"strings"
)

// figures are the metrics of a step that are worth a place on the screen, the most telling first, and what stands over
// their columns.
var figures = [][2]string{
	{"loss", "loss"}, {"reward", "reward"}, {"reward_std", "± group"}, {"accuracy", "right"}, {"mean_token_accuracy", "right"},
	{"rewards/margins", "margin"}, {"rewards/accuracies", "chosen won"}, {"format_rate", "in form"}, {"kl/k3", "kl"}, {"approx_kl", "step kl"},
	{"entropy", "entropy"}, {"completions/mean_length", "length"}, {"completions/clipped_ratio", "cut off"}, {"value_loss", "value loss"},
	{"explained_variance", "expl. var"}, {"clip_ratio/region_mean", "clipped"}, {"epsilon", "epsilon"}, {"grad_norm", "grad norm"}, {"learning_rate", "rate"},
	{"time/step", "s a step"},
}

// RowLine is what a row says, on one line: the names and values of its figures.
func RowLine(row Row) string {
	var parts []string
	for _, f := range figures {
		if v, ok := number(row[f[0]]); ok && !strings.HasPrefix(f[0], "time/") {
			parts = append(parts, fmt.Sprintf("%s=%.4g", f[0], v))
		}
	}
	return strings.Join(parts, " ")
}

// StepTable lays the rows of a run out in columns that are aligned, for a terminal.
type StepTable struct {
	columns [][2]string
	rows    int
}

const (
	columnWidth  = 10
	stepWidth    = 7
	headingEvery = 20 // rows
)

// Line is a row of the table, in a terminal of so many columns, with the headings above it where they are due. A row
// without the figure of a column, as that of an evaluation, has none: then it is "".
func (t *StepTable) Line(row Row, width int) string {
	if t.columns == nil {
		for _, f := range figures {
			if _, ok := number(row[f[0]]); ok && stepWidth+(len(t.columns)+1)*columnWidth < width {
				t.columns = append(t.columns, f)
			}
		}
	}
	step, ok := number(row["step"])
	cells, found := fmt.Sprintf("%*s", stepWidth, Count(int64(step))), false
	for _, c := range t.columns {
		text := "-"
		if v, ok := number(row[c[0]]); ok {
			text, found = fmt.Sprintf("%.4g", v), true
		}
		cells += fmt.Sprintf("%*s", columnWidth, text)
	}
	if !ok || !found {
		return ""
	}
	heading := ""
	if t.rows%headingEvery == 0 {
		heading = fmt.Sprintf("%*s", stepWidth, "step")
		for _, c := range t.columns {
			heading += fmt.Sprintf("%*s", columnWidth, c[1])
		}
		heading += "\n"
	}
	t.rows++
	return heading + cells + "\n"
}
