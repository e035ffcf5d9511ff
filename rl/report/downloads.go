package report

// Downloads returns a function that shows the progress of downloads, in bytes, as a bar, and one that removes a bar that a
// download left unfinished.
func (c *Console) Downloads() (progress func(name string, done, total int64), done func()) {
	var bar *Bar
	size := int64(-1)
	end := func() {
		if bar != nil {
			bar.Done()
		}
		bar, size = nil, -1
	}
	return func(name string, done, total int64) {
		if total != size {
			bar, size = c.Bar("download", "MiB", int(done>>20), int(total>>20)), total
		}
		bar.Set(int(done>>20), name)
		if done >= total {
			end()
		}
	}, end
}
