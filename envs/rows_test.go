package envs_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// TestMissingColumns: the error names the columns of the file and the options that choose them.
func TestMissingColumns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tickets.csv")
	must.Do(t, os.WriteFile(path, []byte("body;queue\nIt broke;support\n"), 0o600))
	find := func(context.Context, string, string, ...string) ([]dataset.Part, error) {
		return []dataset.Part{{Split: dataset.Train, Files: []string{path}}}, nil
	}
	for _, test := range []struct {
		options envs.LabelledRows
		want    string
	}{
		{envs.LabelledRows{TextColumn: "text", LabelColumn: "label"}, `tickets.csv:1: no columns "text", "label"; columns are "body", "queue" … pass --text-column NAME --label-column NAME`},
		{envs.LabelledRows{TextColumn: "body", LabelColumn: "que"}, `tickets.csv:1: no column "que"; … did you mean "queue"?; pass --label-column NAME`},
		{envs.LabelledRows{TextColumn: "body", LabelColumn: "queue", SplitColumn: "part"}, `no column "part"; … pass --split-column NAME`},
	} {
		_, err := test.options.Rows(t.Context(), envs.Setup{Find: find})
		expect.True(t, expect.Names(err, test.want), "\n got %v\nwant %s", err, test.want)
	}
	right := envs.LabelledRows{TextColumn: "body", LabelColumn: "queue"}
	rows, err := right.Rows(t.Context(), envs.Setup{Find: find})
	expect.True(t, err == nil && len(rows) == 1 && rows[0].Text == "It broke", "%v, %v", rows, err)
}
