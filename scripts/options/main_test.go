package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestPagesAreCurrent(t *testing.T) {
	for name, page := range pages {
		before := must.Get(os.ReadFile(filepath.Join("../../docs", name)))(t)
		expect.Equal(t, must.Get(page(string(before)))(t), string(before), fmt.Sprintf("docs/%s is out of date; run go run ./scripts/options", name))
	}
}
