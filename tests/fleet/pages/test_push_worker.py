"""The service worker that shows notifications: public, at the root, without a cache."""

from django.test import Client


def test_the_worker_is_served_at_the_root_to_everyone_under_the_policy(
    client: Client, db: None
) -> None:
    response = client.get("/push-worker.js")

    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/javascript")
    assert response["Cache-Control"] == "no-cache"
    assert "default-src 'none'" in response["Content-Security-Policy"]
    assert "caches." not in response.text
    assert '"fetch"' not in response.text
