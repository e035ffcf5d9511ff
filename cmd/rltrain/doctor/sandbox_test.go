package doctor

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs/sandbox"
)

// A tier has one row: the strongest means that works. If none works, each says why.
func TestStrongest(t *testing.T) {
	refused := errors.New("refused")
	got := strongest([]sandbox.Finding{
		{Tier: sandbox.Namespaces, How: "root", Err: refused},
		{Tier: sandbox.Namespaces, How: "unprivileged"},
		{Tier: sandbox.Landlock, How: "with a user", Err: refused},
		{Tier: sandbox.Landlock, How: "without", Err: refused},
		{Tier: sandbox.Unsafe, How: "seccomp"},
		{Tier: sandbox.Unsafe, How: "limits"},
	})
	var rows []string
	for _, f := range got {
		rows = append(rows, string(f.Tier)+" "+f.How)
	}
	want := []string{"namespaces unprivileged", "landlock with a user", "landlock without", "unsafe seccomp"}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Error(diff)
	}
}
