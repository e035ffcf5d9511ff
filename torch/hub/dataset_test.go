package hub

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// fetched returns the contents of a dataset's files with the given name prefix, ordered by name.
func fetched(t *testing.T, c *tester, dataset, prefix string) ([]string, error) {
	t.Helper()
	var chosen []string
	dir, err := c.Dataset(t.Context(), dataset, func(names []string, readme []byte) ([]string, error) {
		expect.Same(t, readme != nil, slices.Contains(names, "README.md"), "README.md of %q is %q", names, readme)
		chosen = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix) })
		if len(chosen) == 0 {
			return nil, fmt.Errorf("there is no %s", prefix)
		}
		return chosen, nil
	})
	if err != nil {
		return nil, err
	}
	var contents []string
	for _, name := range chosen {
		contents = append(contents, read(t, filepath.Join(dir, name)))
	}
	return contents, nil
}

func TestDatasetFromTheHub(t *testing.T) {
	h, c := newFake(t), newTester()
	h.publish(commit1, map[string]string{
		"README.md":                         "# A data set",
		"data/train-00000-of-00002.parquet": "first", "data/train-00001-of-00002.parquet": "second", "data/test-00000-of-00001.parquet": "third",
	}, "datasets/org/set@main")
	got, err := fetched(t, c, "org/set", "data/train")
	if diff := cmp.Diff([]string{"first", "second"}, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	for _, line := range h.taken() {
		if path := strings.Fields(line)[1]; strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "/api/datasets/org/set/") && !strings.HasPrefix(path, "/datasets/org/set/resolve/") || strings.Contains(line, "data/test") {
			t.Errorf("asked for %s", line)
		}
	}
	root := filepath.Join(os.Getenv("HF_HOME"), "hub", "datasets--org--set")
	expect.Same(t, commit1, read(t, filepath.Join(root, "refs", "main")), "refs/main")
	t.Setenv("HF_DATASETS_OFFLINE", "yes")
	h.taken()
	got, err = fetched(t, c, "org/set", "data/train")
	expect.True(t, err == nil && len(got) == 2, "offline: %q, %v", got, err)
	must.Do(t, os.Remove(filepath.Join(root, "snapshots", commit1, "data", "train-00001-of-00002.parquet")))
	_, err = fetched(t, c, "org/set", "data/train")
	wantError(t, "a lost shard", err, "dataset org/set: data/train-00001-of-00002.parquet: not in the cache", "HF_DATASETS_OFFLINE forbids downloads")
	_, err = fetched(t, c, "org/none", "data/train")
	wantError(t, "nothing", err, `dataset "org/none" is neither a file nor a folder, and nothing of org/none is in the cache`)
	log := h.taken()
	expect.True(t, len(log) == 0, "requests were made: %q", log)
}

func TestDatasetConversion(t *testing.T) {
	h, c := newFake(t), newTester()
	h.publish(commit1, map[string]string{"script.py": "", "all.tar": "x"}, "datasets/org/set@main")
	_, err := fetched(t, c, "org/set", "default/")
	wantError(t, "no conversion", err, "there is no default/", `its conversion to parquet: it has no branch, tag or commit "refs/convert/parquet"`)
	h.publish(commit2, map[string]string{
		".gitattributes": "", "default/train/0000.parquet": "first", "default/train/0001.parquet": "second", "plain/train/0000.parquet": "third",
	}, "datasets/org/set@refs/convert/parquet")
	got, err := fetched(t, c, "org/set", "default/train/")
	if diff := cmp.Diff([]string{"first", "second"}, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	_, err = fetched(t, c, "org/set", "default/dev")
	wantError(t, "no such file", err, "there is no default/dev")
	_, err = fetched(t, c, "org/set@"+commit1, "default/")
	wantError(t, "a revision has no conversion", err, "there is no default/")
	_, err = fetched(t, c, "./none/here", "default/")
	wantError(t, "a path", err, "does not exist, and it names no repository")
}

func TestLostShards(t *testing.T) {
	names := []string{"a-00000-of-00002.parquet", "b-00001-of-00002.csv", "c.json", "d-00000-of-99999.json"}
	lost := lostShards(names)
	expect.True(t, lost[0] == "a-00001-of-00002.parquet" && lost[1] == "b-00000-of-00002.csv" && len(lost) == 2+99998,
		"got %d: %s", len(lost), some(lost))
	expect.Same(t, "a-00001-of-00002.parquet, b-00000-of-00002.csv, d-00001-of-99999.json and 99997 more", some(lost), "some")
}
