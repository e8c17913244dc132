#!/usr/bin/env bash
# Makes what the peers need, once: a virtual environment, and an image in which the far sides of those peers are installed that need one.
#
#   benches/compare/prepare.sh venv DIR            the virtual environment, in DIR; prints its Python
#   benches/compare/prepare.sh image VENV CACHE    the image; prints its name
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..

make_venv() {
    local venv=$1 wanted
    wanted=$(sha256sum < "$here/requirements.txt")
    if [ "$(cat "$venv/wanted" 2>/dev/null)" != "$wanted" ]; then
        echo "installing the peers from PyPI into $venv" >&2
        rm -rf "$venv"
        # The interpreter itself and not a shim, whose start would cost more than Python's.
        "$(python3 -c 'import sys; print(sys.executable)')" -m venv "$venv"
        "$venv/bin/python" -m pip -q install --disable-pip-version-check -r "$here/requirements.txt" >&2
        echo "$wanted" > "$venv/wanted"
    fi
    echo "$venv/bin/python"
}

# The packages are fetched for the image's Python and copied into it, as a container may have no network.
make_image() {
    local venv=$1 cache=$2 base image version site container
    base=$("$root/fixtures/images/build" debian)
    image=farcell-compare:$(cat "$0" "$here/requirements.txt" "$here/requirements-image.txt" - <<< "$base" | sha256sum | cut -c1-12)
    if ! docker image inspect "$image" >/dev/null 2>&1; then
        echo "making the image $image" >&2
        version=$(docker run --rm "$base" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        site=$cache/usr/local/lib/python$version/dist-packages
        rm -rf "$cache"
        mkdir -p "$site" "$cache/usr/local/bin"
        "$venv/bin/python" -m pip -q install --disable-pip-version-check --target "$site" --python-version "$version" --only-binary=:all: \
            -c "$here/requirements.txt" -r "$here/requirements-image.txt" >&2
        printf '#!/bin/sh\nexec python3 -m swerex.server "$@"\n' > "$cache/usr/local/bin/swerex-remote"
        chmod +x "$cache/usr/local/bin/swerex-remote"
        container=$(docker create "$base")
        docker cp -q "$cache/usr" "$container:/"
        docker commit "$container" "$image" >/dev/null
        docker rm "$container" >/dev/null
        rm -rf "$cache"
    fi
    echo "$image"
}

case ${1:-} in
    venv) make_venv "$2" ;;
    image) make_image "$2" "$3" ;;
    *) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
