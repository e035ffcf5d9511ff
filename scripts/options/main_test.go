package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/must"
)

func TestPagesAreCurrent(t *testing.T) {
	for name, page := range pages {
		before := must.Get(os.ReadFile(filepath.Join("../../docs", name)))(t)
		want := must.Get(page(string(before)))(t)
		if diff := cmp.Diff(want, string(before)); diff != "" {
			t.Errorf("docs/%s is out of date; run go run ./scripts/options (-code +page):\n%s", name, diff)
		}
	}
}
