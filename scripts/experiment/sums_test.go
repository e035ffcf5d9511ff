package main

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl"
)

func TestSumRows(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range sumRows() {
		if seen[row.name] {
			t.Errorf("two rows %q", row.name)
		}
		seen[row.name] = true
		for _, c := range row.commands {
			if strings.Contains(c.options, "RATE") || strings.Contains(c.options, "STEPS") || strings.Contains(c.options, "TOKENS") {
				t.Errorf("%s: a placeholder is left in %s", row.name, c.options)
			}
		}
	}
	expect.Equal(t, 5+13+13, len(seen))
}

func TestSumTable(t *testing.T) {
	r := realResults{Runs: []realRun{{Row: "objectives: dapo", Seed: 1, Figures: []realFigure{
		{When: atStart, N: 300, Value: 0.1, Interval: rl.Interval{0.05, 0.15}}, {When: afterRL, N: 300, Value: 0.5, Interval: rl.Interval{0.4, 0.6}}}}}}
	table := r.sumTable(sumObjectives)
	for _, want := range []string{"dapo", "10.0 [5.0, 15.0]", "50.0 [40.0, 60.0]"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	if strings.Contains(r.sumTable(sumGRPO), "dapo") {
		t.Error("a table shows another group's runs")
	}
}
