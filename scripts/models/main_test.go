package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestPageIsUpToDate(t *testing.T) {
	root := filepath.Join("..", "..")
	expect.Equal(t, string(must.Get(os.ReadFile(filepath.Join(root, "docs", "models.md")))(t)), must.Get(models(root))(t), "run: go run ./scripts/models")
}
