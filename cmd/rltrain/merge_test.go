package main

import (
	"os"
	"strings"
	"testing"

	"rltrain/torch/transformers"
)

func TestMergedFolderServesEveryCommand(t *testing.T) {
	for _, pooling := range []string{transformers.PoolMean, transformers.PoolFamily} {
		t.Run(pooling, func(t *testing.T) {
			f := newFolders(t, pooling)
			if got, want := f.must(t, "", "merge", "--model", "MODEL", "--output", "TMP/merged"), f.expand("TMP/merged\n"); got != want {
				t.Errorf("printed %q, want %q", got, want)
			}
			input := "the cat\na court is the law\nlight is a wave\n"
			if err := os.RemoveAll(f.base); err != nil { // a merged model stands alone
				t.Fatal(err)
			}
			if got := f.must(t, input, "predict", "--model", "TMP/merged"); strings.Count(got, "\t") != 3 {
				t.Errorf("predicted %q", got)
			}
			f.must(t, "", "eval", "--model", "TMP/merged", "--dataset", evalFile(t, f))
		})
	}
}

func TestMergedFolderWithoutConfig(t *testing.T) {
	f := newFolders(t, transformers.PoolFamily)
	f.must(t, "", "merge", "--model", "MODEL", "--output", "TMP/merged")
	f.remove(t, "TMP/merged/config.json")
	code, _, stderr := f.rltrain("the cat\n", "predict", "--model", "TMP/merged")
	want := f.expand("rltrain: loading the model: transformers: open TMP/merged/config.json: no such file or directory\n")
	if code != 1 || stderr != want {
		t.Errorf("exit code %d\n got %swant %s", code, stderr, want)
	}
}
