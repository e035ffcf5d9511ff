package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPagesAreCurrent(t *testing.T) {
	for name, page := range pages {
		before, err := os.ReadFile(filepath.Join("../../docs", name))
		if err != nil {
			t.Fatal(err)
		}
		want, err := page(string(before))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(before)); diff != "" {
			t.Errorf("docs/%s is out of date; run go run ./scripts/options (-code +page):\n%s", name, diff)
		}
	}
}
