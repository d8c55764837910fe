#!/bin/bash
sha256sum --check checksums.sha256 2> /dev/null | sed -n 's/: FAILED$//p' | sort > corrupted.txt
