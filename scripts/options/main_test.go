package main

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestThePageIsCurrent: go run ./scripts/options writes it anew.
func TestThePageIsCurrent(t *testing.T) {
	data, err := os.ReadFile("../../docs/options.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(page(), string(data)); diff != "" {
		t.Errorf("docs/options.md is not what the code says; go run ./scripts/options (-code +page):\n%s", diff)
	}
}
